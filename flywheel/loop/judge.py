"""Entering what was measured, and deciding as soon as a block is complete.

The one place where pure decisions meet the ledger. Each function is one transaction: the verdict,
its place in the error budget and its findings are stored together or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from flywheel.box.clock import count
from flywheel.errors import BlockError, LedgerError
from flywheel.ledger import models, views
from flywheel.ledger.rows import BlockRow, RunRow, VariantRow, View
from flywheel.ledger.store import Ledger, log_text
from flywheel.ledger.writer import Writer
from flywheel.lever import LOSSY_METRIC, canonical
from flywheel.loop.step import MATE_SLOT
from flywheel.loop.verdicts import append_calibration, append_decision, close_screened, consider
from flywheel.patch import compare
from flywheel.ruler import differences, of_header
from flywheel.run.manifest import Manifest
from flywheel.run.measurement import measurements
from flywheel.run.parse import parse
from flywheel.run.record import RunRecord
from flywheel.run.refusal import Refusal
from flywheel.statistics.band import Pool, pool
from flywheel.statistics.block import (
    INCUMBENT,
    BlockEstimate,
    cold_block,
    hot_block,
    load_costs,
    lossy_block,
)
from flywheel.statistics.decide import Rule, Verdict
from flywheel.statistics.history import Kind, series_of
from flywheel.statistics.screen import Screened, screen, screen_hot, spread_known
from flywheel.statistics.tau import tau_block

Parse = Callable[[str, Manifest], "RunRecord | Refusal"]
_INCUMBENT_GATE = re.compile(r"\barm A\b")
# To try again as things are would come to the same.
_AT_ONCE = (
    "code_changed", "patch_stale", "gate_broken", "gate_missing", "arm_not_live", "arms_identical",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The terminal row of a run. `outcome` is ok, void, timeout, killed or blocked.

    `code` and `detail` say why it is not ok; `evidence` is any JSON worth keeping (guard, host).
    """

    outcome: str
    code: str
    detail: str
    started_utc: str
    ended_utc: str
    wall_ns: int
    exit_status: int | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entered:
    """What a finished run led to: a void block, an estimate, perhaps a verdict; or more loads."""

    block_id: str
    estimate: BlockEstimate | None = None
    void: str | None = None
    verdict: Verdict | None = None
    findings: tuple[str, ...] = ()
    screened: tuple[Screened, ...] = ()


def enter(
    ledger: Ledger,
    run_id: str,
    end: RunEnd,
    text: str | None,
    record: RunRecord | None,
    *,
    now_utc: str,
    reread: Parse = parse,
) -> Entered:
    """Enter a finished run; estimate its block and decide its lever once that is possible.

    `record` is what the parser made of `text`, and must be there exactly when the outcome is ok.
    `reread` parses the stored logs of a cold block's earlier loads. Raises LedgerError otherwise.
    """
    if (record is not None) != (end.outcome == "ok"):
        raise LedgerError(f"run {run_id} ended {end.outcome}: only a good run has a record")
    with ledger.transaction() as writer:
        view = views.load(writer.connection)
        block = _block_of(view, run_id)
        _append_end(writer, run_id, end, text, record)
        if block.void_code is not None:
            return Entered(block.id, void=block.void_code)
        if record is None:
            return _void(writer, block, end.code or end.outcome, end.detail, end.outcome, now_utc)
        loads = 1 if block.hot else 4
        earlier = [r for r in block.loads if r.id != run_id]
        if len(earlier) + 1 < loads:
            return Entered(block.id)
        records = _records(writer, earlier, reread)
        records[_slot(block, run_id)] = record
        judged = _screen if block.screen else _measure
        return judged(writer, block, [records[k] for k in sorted(records)], now_utc)


def _block_of(view: View, run_id: str) -> BlockRow:
    for block in view.blocks():
        if any(run.id == run_id for run in block.runs):
            return block
    raise LedgerError(f"the ledger has planned no run {run_id}")


def _slot(block: BlockRow, run_id: str) -> int:
    return next(run.slot for run in block.runs if run.id == run_id)


def _records(writer: Writer, runs: Sequence[RunRow], reread: Parse) -> dict[int, RunRecord]:
    out = {}
    for run in runs:
        text = log_text(writer.connection, run.id)
        manifest = Manifest.from_json(views.manifest(writer.connection, run.id))
        record = None if text is None else reread(text, manifest)
        if not isinstance(record, RunRecord):
            raise LedgerError(f"the stored log of run {run.id} no longer parses: {record}")
        out[run.slot] = record
    return out


def _append_end(
    writer: Writer, run_id: str, end: RunEnd, text: str | None, record: RunRecord | None
) -> None:
    writer.append(
        models.run_end,
        run_id=run_id, outcome=end.outcome, code=end.code, detail=end.detail,
        exit_status=end.exit_status, started_utc=end.started_utc, ended_utc=end.ended_utc,
        wall_ns=end.wall_ns, evidence=dict(end.evidence),
    )
    if text is not None:
        writer.append_log(run_id, text)
    if record is None:
        return
    writer.append_all(
        models.arm,
        [
            {
                "run_id": run_id, "name": a.name, "outcome": "ok",
                "requested": canonical(dict(a.requested)), "effective": dict(a.effective),
                "fingerprint": a.fingerprint,
            }
            for a in record.header.arms
        ],
    )
    writer.append_all(
        models.measurement,
        [{"run_id": run_id, "outcome": "ok", **m.as_dict()} for m in measurements(record)],
    )


def _measure(
    writer: Writer, block: BlockRow, records: Sequence[RunRecord], now_utc: str
) -> Entered:
    view = views.load(writer.connection)
    variant = view.variant(block.variant_id)
    # First, for other tokens are no lack of a block but a fault of the patch.
    if variant.lever.kind == "patch" and (wrong := compare.block(records)) is not None:
        return _void(writer, block, "gate_failed", wrong, "void", now_utc)
    try:
        estimate = estimate_block(block, records, variant.lever.metric)
        for other in records[1:]:
            _one_condition(records[0], other)
    except BlockError as error:
        return _void(writer, block, "no_block", str(error), "void", now_utc)
    incumbent = _incumbent(records)
    measured = _measured_by(writer, view, variant, block, incumbent, now_utc)
    if isinstance(measured, Entered):
        return measured
    writer.append(
        models.block,
        block_id=block.id, ruler_id=measured,
        source_sha256=incumbent.header.engine.source_sha256,
        metric=estimate.metric, effect=estimate.effect, contrast=estimate.contrast,
        within_sd=estimate.within_sd, prompt_sd=estimate.prompt_sd,
        level_log_ms=estimate.level_log_ms, prompts=estimate.prompts, loads=estimate.loads,
        tokens=estimate.tokens, categories=[list(c) for c in estimate.categories],
        created_utc=now_utc,
    )
    writer.append_all(
        models.block_guard,
        [{"block_id": block.id, "name": name, "effect": e} for name, e in estimate.guards],
    )
    writer.append_all(
        models.block_prompt, [{"block_id": block.id, **asdict(r)} for r in estimate.by_prompt]
    )
    return _settle(writer, block, estimate, now_utc)


def _measured_by(
    writer: Writer,
    view: View,
    variant: VariantRow,
    block: BlockRow,
    first: RunRecord,
    now_utc: str,
) -> int | Entered:
    """The key of the ruler that a block was measured by; the void block if it may not differ."""
    assert view.campaign is not None
    ruler = of_header(first.header, view.campaign.settings.label, metric=variant.lever.metric)
    for earlier in view.of_campaign(view.campaign.id):
        for known in earlier.measured:
            other_ruler = view.rulers[known.ruler_id or 0]
            if other_ruler.kind != ruler.kind:
                continue
            if what := differences(other_ruler, ruler):
                detail = f"the ruler changed under the campaign: {'; '.join(what)}"
                return _void(writer, block, "ruler_changed", detail, "void", now_utc)
    source = first.header.engine.source_sha256
    if variant.measured and variant.measured[-1].source_sha256 != source:
        detail = "the engine's code changed between two blocks of one lever"
        return _void(writer, block, "code_changed", detail, "void", now_utc)
    writer.append_once(
        models.ruler, "identity", identity=ruler.identity, name=ruler.name,
        fields=ruler.as_dict(), created_utc=now_utc,
    )
    return views.ruler_id(writer.connection, ruler.identity)


def estimate_block(block: BlockRow, records: Sequence[RunRecord], metric: str) -> BlockEstimate:
    """The estimate of a complete block from its records, in order of their slots."""
    if metric == "tau" and block.hot:
        return tau_block(records[0])
    if metric == LOSSY_METRIC:
        return lossy_block(records[0])
    return hot_block(records[0], metric) if block.hot else cold_block(records, metric)


def screen_gains(
    block: BlockRow, records: Sequence[RunRecord], past: Pool, rule: Rule, metric: str
) -> tuple[Screened, ...]:
    """What a screen's loads say about its candidates, in order. BlockError when they do not fit."""
    if block.hot:
        return (screen_hot(hot_block(records[0], metric).gain, past, rule),)
    return screen(load_costs(records, metric), past, rule)


def _screen(
    writer: Writer, block: BlockRow, records: Sequence[RunRecord], now_utc: str
) -> Entered:
    """Enter a screen's answers; what fails is closed, what passes waits for its confirmation."""
    view = views.load(writer.connection)
    variant = view.variant(block.variant_id)
    assert view.campaign is not None
    rule, metric = view.campaign.settings.rule, variant.lever.metric
    ruler_id = _measured_by(writer, view, variant, block, records[0], now_utc)
    if isinstance(ruler_id, Entered):
        return ruler_id
    past = pool(series_of(view, Kind(ruler_id, metric, block.hot), block.serial))
    if not spread_known(past):
        said = "nothing is known about the spread of such loads yet"
        return _void(writer, block, "no_spread", said, "void", now_utc)
    try:
        for other in records[1:]:
            _one_condition(records[0], other)
        answers = screen_gains(block, records, past, rule, metric)
    except BlockError as error:
        return _void(writer, block, "no_block", str(error), "void", now_utc)
    for variant_id, said_of in zip((block.variant_id, block.mate_id), answers, strict=False):
        writer.append(
            models.screen, block_id=block.id, variant_id=variant_id, ruler_id=ruler_id,
            source_sha256=records[0].header.engine.source_sha256, **asdict(said_of),
            created_utc=now_utc,
        )
    return Entered(block.id, screened=answers, findings=close_screened(writer, now_utc))


def _incumbent(records: Sequence[RunRecord]) -> RunRecord:
    """A load that holds the incumbent: its code is the block's."""
    return next((r for r in records if INCUMBENT in r.header.plan.arms), records[0])


def _one_condition(first: RunRecord, other: RunRecord) -> None:
    what = differences(of_header(first.header, "load"), of_header(other.header, "load"))
    if what:
        raise BlockError(f"the loads of one block differ in their ruler: {'; '.join(what)}")
    if all("source" in arm.effective for r in (first, other) for arm in r.header.arms):
        return  # each arm was held to the code that it states
    if first.header.engine.source_sha256 != other.header.engine.source_sha256:
        raise BlockError("the engine's code changed between the loads of one block")


def _void(
    writer: Writer, block: BlockRow, code: str, detail: str, outcome: str, now_utc: str
) -> Entered:
    """Void a whole block; a failed gate closes the lever, a third void defers it."""
    view = views.load(writer.connection)
    variant = view.variant(block.variant_id)
    if outcome == "blocked":
        code, detail = "blocked", f"{code}: {detail}"
    elif code == "gate_failed" and _INCUMBENT_GATE.search(detail):
        code, detail = "incumbent_incorrect", f"a gate failed on the incumbent: {detail}"
    writer.append(
        models.block_void, block_id=block.id, code=code, detail=detail, created_utc=now_utc
    )
    view = views.load(writer.connection)
    block = view.block(block.id)
    variant = view.variant(_at_fault(block))
    assert view.campaign is not None
    verdict = None
    if variant.purpose in ("lever", "canary"):
        alpha_t, n = view.budget(variant.campaign_id).alpha_t, len(variant.measured)
        attempts = view.campaign.settings.attempts
        if code == "gate_failed":
            verdict = Verdict("incorrect", code, detail, n, None, 0.0, alpha_t)
        elif variant.voids_in_a_row >= attempts or (
            code in _AT_ONCE and (block.hot or not block.screen)
        ):
            said = f"deferred after {count(variant.voids_in_a_row, 'void run')}: {code}, {detail}"
            verdict = Verdict("void", code, said, n, None, 0.0, alpha_t)
    found: tuple[str, ...] = ()
    if verdict is not None:
        rule = view.campaign.settings.rule
        found = append_decision(writer, view, variant, verdict, rule, now_utc)
    return Entered(block.id, void=code, verdict=verdict, findings=found)


def forgo(
    ledger: Ledger, block_id: str, code: str, detail: str, *, now_utc: str
) -> Entered:
    """Void a block whose loads were never started, because what they need could not be made."""
    with ledger.transaction() as writer:
        block = views.load(writer.connection).block(block_id)
        return _void(writer, block, code, detail, "void", now_utc)


@dataclass(frozen=True, slots=True)
class Service:
    """What came of putting a head into service: the proof's word, and what it was asked for."""

    holds: bool
    detail: str
    signature: Mapping[str, Any]


def settle_head(
    ledger: Ledger, variant_id: str, service: Service, *, now_utc: str
) -> tuple[Verdict, tuple[str, ...]]:
    """Promote a measured head together with its staging, or take both back: one transaction.

    Raises LedgerError for a head that its numbers do not promote.
    """
    with ledger.transaction() as writer:
        view = views.load(writer.connection)
        variant = view.variant(variant_id)
        assert view.campaign is not None
        rule = view.campaign.settings.rule
        alpha_t = view.budget(variant.campaign_id).alpha_t
        verdict = consider(view, variant, view.campaign.settings, alpha_t)
        if variant.decision is not None or verdict.ending != "promoted":
            raise LedgerError(f"{variant_id} is not a head that waits to be put into service")
        if not service.holds:
            said = f"{verdict.sentence}; rolled back, for the served head is not the measured one: "
            verdict = Verdict(
                "void", "rolled_back", said + service.detail, 0, None, 0.0, alpha_t
            )
        found = append_decision(writer, view, variant, verdict, rule, now_utc)
        decided = views.load(writer.connection).variant(variant_id).decision
        assert decided is not None
        writer.append(
            models.head_stage, head=str(variant.candidate["head"]), decision_id=decided.number,
            outcome="live" if service.holds else "rolled_back", detail=service.detail,
            signature=dict(service.signature), created_utc=now_utc,
        )
        return verdict, found


def _at_fault(block: BlockRow) -> str:
    """The variant whose load made a block void: the mate's, if it ran last."""
    if block.mate_id is not None and block.runs and block.runs[-1].slot == MATE_SLOT:
        return block.mate_id
    return block.variant_id


def _settle(
    writer: Writer, block: BlockRow, estimate: BlockEstimate, now_utc: str
) -> Entered:
    view = views.load(writer.connection)
    variant = view.variant(block.variant_id)
    assert view.campaign is not None
    settings = view.campaign.settings
    if variant.purpose in ("null", "anchor"):
        found = append_calibration(writer, view, variant, settings, now_utc)
        return Entered(block.id, estimate, findings=found)
    alpha_t = view.budget(variant.campaign_id).alpha_t
    verdict = consider(view, variant, settings, alpha_t)
    if verdict.ending is None:
        return Entered(block.id, estimate, verdict=verdict)
    if variant.lever.kind == "head" and verdict.ending == "promoted":
        return Entered(block.id, estimate)  # decided by `settle_head`, once it proved itself
    found = append_decision(writer, view, variant, verdict, settings.rule, now_utc)
    if verdict.ending == "promoted" and variant.purpose == "lever":
        found += close_screened(writer, now_utc)
    return Entered(block.id, estimate, verdict=verdict, findings=found)
