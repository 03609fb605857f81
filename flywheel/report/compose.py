"""A view of the ledger in, the report's document out. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flywheel import best as best_of, synthetic
from flywheel.ledger.rows import BlockRow, DecisionRow, RunRow, VariantRow, View
from flywheel.lever import canonical
from flywheel.report import headline
from flywheel.report.detail import best_runs, detail
from flywheel.report.document import (
    BlockLine,
    Document,
    FaultLine,
    FindingLine,
    HaltLine,
    QueueLine,
    Row,
    RunLine,
    VoidRow,
)
from flywheel.report.evidence import Evidence, repeat_command
from flywheel.report.imported import ImportedLine
from flywheel.report.scope import Scope
from flywheel.report.trace import ended, newest_timed, of_synthetic, trace
from flywheel.report.words import bound, time_ends
from flywheel.run.measurement import Measurement
from flywheel.statistics.band import gain_fraction
from flywheel.width.page import WidthPage


@dataclass(frozen=True, slots=True)
class Around:
    """What the view does not hold: the plan's words, halts, and what was read for the detail.

    `measured` holds the measurements of the runs that `best_runs` names; without them the document
    has no detail part. `evidence` is by run.
    """

    next: str
    queue: Sequence[QueueLine] = ()
    halts: Sequence[HaltLine] = ()
    notes: Sequence[str] = ()
    measured: Mapping[str, Sequence[Measurement]] = field(default_factory=dict)
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    imported: Sequence[ImportedLine] = ()
    width: WidthPage | None = None
    faults: Sequence[FaultLine] = ()


def build(scope: Scope, around: Around) -> Document:
    """The report on one part of the history. Raises LedgerError when there is no campaign."""
    view = scope.view
    best = best_of.fold(view)
    mine, cost = scope.variants(), headline.cost(scope)
    return Document(
        title=headline.title(scope, cost),
        since_utc=scope.since_utc,
        canaries=headline.canaries(scope),
        incumbent=headline.incumbent(view, best, around.measured),
        gain=headline.gain(view, best),
        cost=cost,
        halts=tuple(around.halts),
        budget=_budget(scope),
        rows=tuple(row(view, v, d) for v, d in scope.decisions()),
        voids=tuple(_void(v, b) for v in mine for b in scope.blocks(v) if _is_void(v, b)),
        findings=_findings(scope),
        next=around.next,
        queue=tuple(around.queue),
        config=dict(best.config),
        first_config=dict(best.first_config),
        trace=trace(view, since_utc=scope.since_utc),
        detail=detail(best_runs(view, best), around.measured) if around.measured else None,
        runs=tuple(run_line(v, b, r) for v in mine for b in scope.blocks(v) for r in b.runs),
        notes=(*_of_weights(view), *_of_quiet(scope), *around.notes),
        evidence=dict(around.evidence),
        imported=tuple(around.imported),
        width=around.width,
        faults=tuple(around.faults),
    )


def _of_weights(view: View) -> tuple[str, ...]:
    """The first note of a report on random weights."""
    return (synthetic.NOTE,) if of_synthetic(view, newest_timed(view)) else ()


def _of_quiet(scope: Scope) -> tuple[str, ...]:
    """Lines of noughts for a period without a run look like a night that went wrong."""
    quiet = scope.since_utc is not None and not scope.runs() and not scope.decisions()
    return ("nothing ended in this period; without --since the newest campaign is told",
            ) if quiet else ()


def _budget(scope: Scope) -> str:
    settings = scope.campaign.settings
    budget = scope.view.budget(scope.campaign.id)
    return (
        f"{budget.tests} of {settings.budget} tests spent at alpha {settings.alpha:g}; "
        f"the next needs E >= " + (f"{1 / budget.alpha_t:.3g}" if budget.alpha_t else "infinity")
    )


def _findings(scope: Scope) -> tuple[FindingLine, ...]:
    mine, since = {v.id for v in scope.variants()}, scope.since_utc
    return tuple(
        FindingLine(f.number, f.created_utc[:10], f.sentence, tuple(f.evidence.get("runs", ())))
        for f in scope.view.findings
        if f.variant_id in mine and (since is None or f.created_utc >= since)
    )


def row(view: View, variant: VariantRow, decision: DecisionRow) -> Row:
    """One decision as the report shows it."""
    mean = low = high = None
    if decision.band is not None:
        mean, low, high = headline.fractions(decision.band)
    blocks = looked_at(view, variant)
    return Row(
        decision=decision.number,
        findings=tuple(f.number for f in view.findings if f.decision == decision.number),
        label=label_of(variant),
        name=variant.lever.name,
        ending=decision.ending,
        code=decision.code,
        said=_said(variant.lever.metric, decision, mean, low, high),
        mean=mean,
        low=low,
        high=high,
        blocks=decision.n,
        predicted=variant.predicted_gain,
        runs=tuple(r.id for b in blocks for r in b.runs),
        superseded_by=decision.superseded_by,
        null=variant.null,
        unbounded=decision.band is not None and (low is None or high is None),
        measured=tuple(block_line(b) for b in blocks),
        metric=variant.lever.metric,
    )


def looked_at(view: View, variant: VariantRow) -> tuple[BlockRow, ...]:
    """Its own blocks, after the screen that it shared if that is another variant's block."""
    shared = variant.screened
    if shared is None or shared.block_id in {b.id for b in variant.blocks}:
        return variant.blocks
    return (view.block(shared.block_id), *variant.blocks)


def block_line(block: BlockRow) -> BlockLine:
    """One block as the report shows it."""
    runs, estimate = tuple(r.id for r in block.loads), block.estimate
    if estimate is None:
        return BlockLine(block.id, block.number, block.hot, ended(block), runs,
                         void_code=block.void_code, void_detail=block.void_detail,
                         screened=tuple(f"{a.variant_id} {a.answer.sentence}"
                                        for a in block.answers))
    sign = -1.0 if estimate.metric == "tau" else 1.0
    return BlockLine(
        block.id, block.number, block.hot, ended(block), runs, estimate.metric,
        gain_fraction(estimate.gain), estimate.within_sd, math.exp(sign * estimate.level_log_ms),
    )


def label_of(variant: VariantRow) -> str:
    """The change with the value it replaces: `threads 1 -> 2`; a null by its purpose."""
    if variant.null:
        return f"{variant.purpose} {variant.id}"
    field_name = variant.lever.field_name
    if field_name is None:
        return variant.purpose
    if variant.lever.kind == "head":
        return variant.lever.label()  # trained anew, it does not change the incumbent's
    # A field that the incumbent leaves to the engine has no value to show.
    old = variant.incumbent.get(field_name)
    shown = f"{old if isinstance(old, str) else canonical(old)} " if old is not None else ""
    return f"{field_name} {shown}{variant.lever.label().removeprefix(field_name).lstrip()}"


def _said(
    metric: str,
    decision: DecisionRow,
    mean: float | None,
    low: float | None,
    high: float | None,
) -> str:
    """The figure that the row is about, in the words of its ending."""
    timed = metric != "tau"  # a head's sentence has its figures
    if timed and decision.ending == "promoted" and mean is not None:
        return f"{-mean * 100:+.1f} % time {time_ends(low, high)}"
    worthless = ("priced_out", "regression", "lossy")
    if timed and decision.ending == "rejected" and decision.code not in worthless:
        return bound(high)
    return decision.sentence.replace("regression in", "REGRESSION in")


def _is_void(variant: VariantRow, block: BlockRow) -> bool:
    """A failed gate that closed its lever is that lever's ending, not nobody's result."""
    incorrect = variant.decision is not None and variant.decision.ending == "incorrect"
    return block.void_code is not None and not (incorrect and block.void_code == "gate_failed")


def _void(variant: VariantRow, block: BlockRow) -> VoidRow:
    later = [b for b in variant.blocks if b.number > block.number]
    if any(b.estimate is not None for b in later):
        after = "retried, ok"
    elif variant.decision is not None:
        after = variant.decision.ending if variant.decision.ending != "void" else "deferred"
    else:
        after = "to be retried"
    return VoidRow(
        block.id, label_of(variant), str(block.void_code), block.void_detail, after,
        tuple(r.id for r in block.runs),
    )


def run_line(variant: VariantRow, block: BlockRow, run: RunRow) -> RunLine:
    """One run as the report lists it."""
    return RunLine(
        run.id, block.id, variant.id, variant.purpose, label_of(variant),
        run.outcome or "running", run.code, run.detail, run.started_utc or run.created_utc,
        run.wall_s, f"runs/{run.id}/run.log", run.log_sha256 or "", repeat_command(run.id),
    )
