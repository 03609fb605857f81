"""Every head of a ledger side by side: the ladder of arms, and what each stage took. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flywheel.heads.judge import least_rise
from flywheel.heads.numbers import Measured, Standing, standings
from flywheel.ledger.rows import View
from flywheel.statistics.band import Band, Pool, effect_band
from flywheel.statistics.block import PromptRounds

_NOTHING = Pool(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Rung:
    """One head: what it changed, its gain in tau with its band, and its verdict. Gains are log.

    ``suite`` names what it was measured on: taus of different suites say nothing to each other.
    """

    name: str
    change: str
    tau: float
    incumbent: str
    incumbent_tau: float
    gain: Band
    held_out: float | None
    incumbent_held_out: float | None
    status: str
    seconds: float | None
    least_rise_percent: float | None  # that its prompts could have shown; None before a verdict
    suite: str


@dataclass(frozen=True, slots=True)
class Group:
    """One category of the best head's measurement beside its incumbent's."""

    name: str
    prompts: int
    tau: float
    before: float
    gain: Band


def ladder(view: View) -> tuple[Rung, ...]:
    """Every measured head, the highest tau first; of equals the one that was archived first.

    The suite that was measured last comes before all others.
    """
    cards = {row.name: row.card for row in view.heads}
    found = [
        (head.measured.block.serial, _rung(view, head, cards[head.name]))
        for head in standings(view) if head.measured
    ]  # fmt: skip
    last = {rung.suite: serial for serial, rung in sorted(found, key=lambda one: one[0])}
    return tuple(sorted((rung for _, rung in found), key=lambda r: (-last[r.suite], -r.tau)))


def groups(mine: Measured, *, held_out: bool) -> tuple[Group, ...]:
    """The categories of one measurement, then all of them together."""
    rows = [r for r in mine.rows if r.held_out is held_out]
    by_name: dict[str, list[PromptRounds]] = defaultdict(list)
    for row in rows:
        by_name[row.category].append(row)
    named = [_group(name, members) for name, members in sorted(by_name.items())]
    return (*named, _group("all", rows)) if rows else ()


def stage_seconds(view: View) -> Mapping[str, Sequence[float]]:
    """What each stage took, once for every head that says so; shared stages are counted once."""
    found: dict[str, dict[Any, float]] = defaultdict(dict)
    for row in view.heads:
        for stage, told in row.card.get("stages", {}).items():
            found[stage][told["seconds"]] = float(told["seconds"])
        training = row.card.get("training", {})
        if "seconds" in training:
            found["train"][row.name] = float(training["seconds"])
    for variant in view.variants:
        if variant.lever.kind == "head":
            for run in (r for b in variant.measured for r in b.runs):
                found["measure"][run.id] = run.wall_s
    return {stage: tuple(times.values()) for stage, times in found.items()}


def percent(gain: Band) -> str:
    """A band of log gains as the rise of tau: `+4.1 % [+1.2, +7.0]`."""
    low, high = (
        f"{math.expm1(end) * 100:+.1f}" if math.isfinite(end) else "?"
        for end in (gain.low, gain.high)
    )
    return f"{math.expm1(gain.mean) * 100:+.1f} % [{low}, {high}]"


def _suite_of(view: View, mine: Measured) -> str:
    """The name of a suite; with a part of its hash where another has the same name."""
    ruler = view.rulers[mine.block.ruler_id or 0]
    named = {r.suite_sha256 for r in view.rulers.values() if r.suite == ruler.suite}
    return ruler.suite if len(named) < 2 else f"{ruler.suite} {ruler.suite_sha256[:8]}"


def _rung(view: View, head: Standing, card: Mapping[str, Any]) -> Rung:
    mine = head.measured
    assert mine is not None
    now, before = mine.candidate, mine.before
    return Rung(
        name=head.name,
        change="by hand" if head.variant is None else head.variant.lever.label(),
        tau=float(now.suite),
        incumbent=mine.incumbent,
        incumbent_tau=float(before.suite),
        gain=_band([r for r in mine.rows if not r.held_out]),
        held_out=None if now.held_out is None else float(now.held_out),
        incumbent_held_out=None if before.held_out is None else float(before.held_out),
        status=head.status,
        seconds=card.get("training", {}).get("seconds"),
        least_rise_percent=least_rise(
            None if head.decision is None else head.decision.details.get("detectable")
        ),
        suite=_suite_of(view, mine),
    )


def _group(name: str, rows: Sequence[PromptRounds]) -> Group:
    taus = [r.made / r.candidate for r in rows], [r.made / r.incumbent for r in rows]
    now, before = (math.fsum(t) / len(t) for t in taus)
    return Group(name, len(rows), now, before, _band(rows))


def _band(rows: Sequence[PromptRounds]) -> Band:
    return effect_band([r.gain for r in rows], _NOTHING)
