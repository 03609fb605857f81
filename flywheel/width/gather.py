"""Evidence for the width analysis, from our own run logs or from an imported one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from sqlalchemy import Connection

from flywheel import best as best_of
from flywheel.errors import LedgerError, UsageError
from flywheel.foreign import history
from flywheel.foreign.record import DecodeLog, Point as ForeignPoint
from flywheel.foreign.suite import CONTROL, category
from flywheel.ledger import views
from flywheel.ledger.store import log_text
from flywheel.report.detail import NEWEST, best_runs
from flywheel.run.manifest import Manifest
from flywheel.run.parse import parse
from flywheel.run.record import Point, RunRecord
from flywheel.width.evidence import Costs, Evidence, Prompt, Score


def own(connection: Connection) -> Evidence:
    """The best configuration's newest runs.

    Raises LedgerError when there are none, and for random weights, which accept nothing.
    """
    view = views.load(connection)
    found = []
    for run_id, arm in best_runs(view, best_of.fold(view))[:NEWEST]:
        text = log_text(connection, run_id)
        manifest = Manifest.from_json(views.manifest(connection, run_id))
        record = None if text is None else parse(text, manifest)
        if isinstance(record, RunRecord):
            found.append((record, arm))
    if not found:
        raise LedgerError("the best configuration has no measured run yet; flywheel run makes some")
    if any(record.header.synthetic for record, _ in found):
        raise LedgerError("random weights say nothing about widths: their runs draft nothing")
    return of_records(found)


def of_records(found: Sequence[tuple[RunRecord, str]]) -> Evidence:
    """Counts of one configuration's arms, pooled by prompt over loads and repeats."""
    points = [p for record, arm in found for p in record.points
              if p.arm == arm and p.counted and p.rounds]
    steps: dict[int, list[int]] = defaultdict(list)
    for record, arm in found:
        for cost in record.step_costs:
            if cost.arm == arm:
                steps[cost.width].append(cost.ns)
    step_ns = {rows: float(median(times)) for rows, times in sorted(steps.items())}
    names = dict.fromkeys(p.prompt for p in points)
    prompts = tuple(_prompt([p for p in points if p.prompt == name]) for name in names)
    record, arm = found[0]
    effective = record.header.arm(arm).effective
    return Evidence(
        label=f"the best configuration, {len(found)} loads",
        sources=tuple(record.run_id for record, _ in found),
        width=max((p.width for p in points), default=0),
        policy=str(effective.get("verify_policy", "fixed")),
        prompts=prompts,
        costs=Costs(step_ns, _beside(prompts, step_ns)),
        caveats=(
            "what a round takes beside its verify step (draft, sampling) is the median excess of "
            "measured rounds over C(offered + 1), taken as equal for every width above 0",
        ),
    )


def _prompt(points: Sequence[Point]) -> Prompt:
    """One prompt; loads and repeats that decode alike are one text, and sharpen only its time."""
    texts = {(p.tokens_sha256, p.offered_by_position, p.accepted_by_position): p for p in points}
    alike = list(texts.values())
    offered = _added([p.offered_by_position for p in alike])
    accepted = _added([p.accepted_by_position for p in alike])
    rounds, tokens = sum(p.rounds for p in alike), sum(p.tokens - 1 for p in alike)
    # The log has no joint counts; at a fixed width only the last round of a text can differ.
    reached = tuple(min(o, before) for o, before in zip(offered, (rounds, *accepted), strict=False))
    typical = median(p.decode_ns / (p.tokens - 1) for p in points)
    return Prompt(
        points[0].prompt, points[0].category, rounds, tokens, offered, reached, accepted,
        round(typical * tokens),
    )  # fmt: skip


def foreign(connection: Connection, name: str) -> Evidence:
    """One imported decode log. Raises UsageError for a refused one or another kind."""
    found = history.named(connection, name)
    log = history.stored(connection, found.sha256).log
    if found.refusal is not None or not isinstance(log, DecodeLog):
        why = found.refusal or "it is no decode log"
        raise UsageError(f"{found.name} has no rounds to analyse: {why}.")
    return of_log(found.name, log)


def of_log(name: str, log: DecodeLog) -> Evidence:
    """Rounds of a foreign log; a round's printed time holds its draft, so C is of whole rounds."""
    points = [p for p in log.complete_points if p.prompt != CONTROL.number]
    times: dict[int, list[int]] = defaultdict(list)
    for point in points:
        # The first round of a point pays for what the later ones find ready.
        for one in point.rounds[1:]:
            times[one.rows].append(one.time_us * 1000)
    step_ns = {rows: float(median(mine)) for rows, mine in sorted(times.items())}
    rough: tuple[int, ...] = ()
    if 1 not in step_ns and log.base.step_us:
        step_ns = {1: float(median(log.base.step_us)) * 1000, **step_ns}
        rough = (1,)
    return Evidence(
        label=f"imported {name}",
        sources=(name,),
        width=points[0].width,
        policy="margin",
        prompts=tuple(_foreign_prompt(p) for p in points),
        costs=Costs(step_ns, 0.0, rough),
        score="margin",
        scores=tuple(s for p in points for s in _scores(p)),
        caveats=(
            "most of these tokens lie past the end of a sequence, where acceptance means little",
            "C(k) is a whole round, draft included; C(1) is plain decode without a draft, a bound",
        ),
    )


def _foreign_prompt(point: ForeignPoint) -> Prompt:
    width = point.width
    return Prompt(
        str(point.prompt), category(point.prompt), len(point.rounds), point.generated or 0,
        tuple(sum(r.offered > j for r in point.rounds) for j in range(width)),
        tuple(sum(r.offered > j and r.accepted >= j for r in point.rounds) for j in range(width)),
        tuple(sum(r.accepted > j for r in point.rounds) for j in range(width)),
        sum(r.time_us for r in point.rounds) * 1000,
    )  # fmt: skip


def _scores(point: ForeignPoint) -> list[Score]:
    return [
        Score(j + 1, float(one.margins[j]), one.accepted > j)
        for one in point.rounds
        for j in range(min(one.offered, one.accepted + 1, len(one.margins)))
    ]


def _added(rows: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    deepest = max(len(row) for row in rows)
    return tuple(sum(row[j] for row in rows if j < len(row)) for j in range(deepest))


def _beside(prompts: Sequence[Prompt], step_ns: dict[int, float]) -> float:
    """Median over prompts of the measured time of a round less its verify steps; never negative."""
    excess = []
    for prompt in prompts:
        offered = (prompt.rounds, *prompt.offered, 0)
        steps = [(a - b, step_ns.get(rows)) for rows, (a, b) in
                 enumerate(pairwise(offered), 1)]
        if prompt.rounds and all(ns is not None or not rounds for rounds, ns in steps):
            verify = sum(rounds * (ns or 0.0) for rounds, ns in steps)
            excess.append((prompt.decode_ns - verify) / prompt.rounds)
    return max(0.0, median(excess)) if excess else 0.0
