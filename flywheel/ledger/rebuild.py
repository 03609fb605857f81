"""Everything again from the stored logs: the proof that the ledger's best is no opinion.

`rebuild` re-parses every log, re-estimates every block and re-decides every lever in the order in
which it happened, each under the rule that decided it, in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from flywheel.best import Best, fold
from flywheel.errors import BlockError
from flywheel.foreign import history
from flywheel.ledger import views
from flywheel.ledger.rows import BlockRow, DecisionRow, VariantRow, View
from flywheel.ledger.store import Ledger, log_text
from flywheel.loop.judge import Parse, estimate_block, screen_gains
from flywheel.loop.verdicts import consider, first_blocks
from flywheel.run.manifest import Manifest
from flywheel.run.parse import parse
from flywheel.run.record import RunRecord
from flywheel.statistics.band import pool
from flywheel.statistics.block import BlockEstimate
from flywheel.statistics.campaign import Budget, Settings
from flywheel.statistics.decide import Verdict
from flywheel.statistics.history import Kind, series_of


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The best as re-derived, and every place where the ledger says something else.

    `imported` is how many files of foreign history were read again; a ledger of nothing else has
    no best.
    """

    best: Best | None
    logs: int
    blocks: int
    decisions: int
    differences: tuple[str, ...]
    imported: int = 0

    @property
    def same(self) -> bool:
        """Nothing differs."""
        return not self.differences


def rebuild(ledger: Ledger, *, reread: Parse = parse) -> Rebuilt:
    """Re-derive everything from the stored logs and compare it with what is recorded.

    Raises LedgerError for a ledger with neither a campaign nor anything imported.
    """
    with ledger.reading() as connection:
        view = views.load(connection)
        found: list[str] = list(history.differences(connection))
        imported = len(history.imported(connection))
        logs = 0

        def records(block: BlockRow) -> list[RunRecord]:
            nonlocal logs
            out = []
            for run in block.loads:
                text = log_text(connection, run.id)
                manifest = Manifest.from_json(views.manifest(connection, run.id))
                read = None if text is None else reread(text, manifest)
                logs += text is not None and run.block_id == block.id
                if isinstance(read, RunRecord):
                    out.append(read)
                else:
                    found.append(f"run {run.id} was ok, but its log now reads: {read}")
            return out

        fresh = _with_estimates(view, lambda b: _estimate(view, b, records(b), found))
        for block in fresh.blocks():
            if block.answers:
                found += _screened_otherwise(fresh, block, records(block))
    if imported and view.campaign is None:
        return Rebuilt(None, 0, 0, 0, tuple(found), imported)
    again, decided = _decide_again(fresh, found)
    best = fold(again)
    if best != fold(view):
        found.append("the best configuration differs")
    blocks = sum(b.estimate is not None for b in again.blocks())
    return Rebuilt(best, logs, blocks, decided, tuple(found), imported)


def _estimate(
    view: View, block: BlockRow, records: list[RunRecord], found: list[str]
) -> BlockEstimate | None:
    if len(records) != len(block.runs):
        return None
    metric = view.variant(block.variant_id).lever.metric
    try:
        estimate = estimate_block(block, records, metric)
    except BlockError as error:
        found.append(f"block {block.id} was measured, but now: {error}")
        return None
    stored = block.estimate
    if stored is not None and not estimate.agrees(stored):
        found.append(f"block {block.id} now estimates {estimate.effect:.6g}")
    return estimate


def _screened_otherwise(view: View, block: BlockRow, records: list[RunRecord]) -> list[str]:
    """What a screen's logs say now that its stored answers do not."""
    if len(records) != len(block.loads):
        return []
    metric, first = view.variant(block.variant_id).lever.metric, block.answers[0]
    campaign_id = view.variant(block.variant_id).campaign_id
    rule = next(c.settings.rule for c in view.campaigns if c.id == campaign_id)
    past = pool(series_of(view, Kind(first.ruler_id, metric, block.hot), block.serial))
    try:
        again = screen_gains(block, records, past, rule, metric)
    except BlockError as error:
        return [f"block {block.id} screened, but now: {error}"]
    stored = {a.variant_id: a.answer for a in block.answers}
    return [
        f"block {block.id} now screens {variant_id} with {answer.gain:.6g}"
        for variant_id, answer in zip((block.variant_id, block.mate_id), again, strict=False)
        if not stored[str(variant_id)].agrees(answer)
    ]


def _with_estimates(view: View, again: Callable[[BlockRow], BlockEstimate | None]) -> View:
    """The view with every estimate derived again by `again`; void blocks stay void."""
    return replace(
        view,
        variants=tuple(
            replace(
                v,
                blocks=tuple(
                    b if b.estimate is None else replace(b, estimate=again(b)) for b in v.blocks
                ),
            )
            for v in view.variants
        ),
    )


def _decide_again(view: View, found: list[str]) -> tuple[View, int]:
    """Fold the decisions again, in their order, each from its own blocks; note what differs."""
    budgets: dict[int, Budget] = {}
    settings = {c.id: c.settings for c in view.campaigns}
    endings: dict[int, str] = {}
    for decision in view.standing():
        variant = view.variant(decision.variant_id)
        own = settings[variant.campaign_id]
        budget = budgets.setdefault(variant.campaign_id, Budget(own))
        ending = decision.ending
        if _by_statistics(variant, decision):
            blocks = first_blocks(variant, decision.n)
            verdict = consider(view, blocks, _settings_of(own, decision), budget.alpha_t)
            early = decision.code == "stopped_early"
            ending = verdict.ending or ("inconclusive" if early else "undecided")
            if ending != decision.ending or not _close(verdict, decision):
                found.append(
                    f"D{decision.number} ({variant.lever.name}) was {decision.ending}, "
                    f"now {ending} "
                    f"(E {verdict.e_value:.6g}, was {decision.e_value:.6g})"
                )
        endings[decision.number] = ending
        if decision.test is not None:
            budgets[variant.campaign_id] = budget.after(ending == "promoted")
    return view.with_endings(endings), len(endings)


def _settings_of(own: Settings, decision: DecisionRow) -> Settings:
    return replace(own, rule=decision.rule)


def _by_statistics(variant: VariantRow, decision: DecisionRow) -> bool:
    """Whether blocks decided it; gates, voids and prices decide without statistics."""
    return decision.n > 0 and decision.mean is not None and bool(variant.measured)


def _close(verdict: Verdict, decision: DecisionRow) -> bool:
    return math.isclose(verdict.e_value, decision.e_value, rel_tol=1e-9, abs_tol=1e-12)
