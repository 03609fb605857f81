"""Reading the ledger: frozen objects out, never a live row.

One `load` returns everything but logs and measurements, which are read on their own.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, func, literal_column, select

from flywheel.errors import LedgerError
from flywheel.ledger import attempts, models, phases, steering
from flywheel.ledger.rows import (
    BlockRow,
    CampaignRow,
    DecisionRow,
    FindingRow,
    HeadRow,
    PatchRow,
    RunRow,
    ScreenRow,
    StageRow,
    VariantRow,
    View,
)
from flywheel.lever import Lever
from flywheel.ruler import Ruler
from flywheel.run.measurement import Measurement
from flywheel.statistics.block import BlockEstimate, PromptRounds
from flywheel.statistics.campaign import Settings
from flywheel.statistics.decide import Rule
from flywheel.statistics.screen import Screened

__all__ = [
    "BlockRow", "CampaignRow", "DecisionRow", "FindingRow", "RunRow", "VariantRow", "View",
    "effective_configs", "fingerprints", "levers", "load", "manifest", "measurements",
    "newest_campaign", "ruler_id",
]


def load(connection: Connection) -> View:
    """Read the history. Use inside `Ledger.reading()` or a transaction."""
    blocks = _blocks(connection, _runs(connection))
    decisions = _decisions(connection)
    standing = {d.variant_id: d for d in decisions if d.superseded_by is None}
    return View(
        campaigns=_campaigns(connection),
        variants=_variants(connection, blocks, standing),
        findings=tuple(
            FindingRow(r.number, r.variant_id, r.decision_id, r.sentence, json.loads(r.evidence),
                       r.created_utc)
            for r in connection.execute(select(models.finding).order_by(models.finding.c.number))
        ),
        rulers={r.id: Ruler.from_dict(json.loads(r.fields))
                for r in connection.execute(select(models.ruler))},
        decisions=decisions,
        steering=steering.said(connection),
        phases=phases.entered(connection),
        profiles=phases.profiles(connection),
        proposals=phases.proposals(connection),
        attempts=attempts.made(connection),
        sweeps=attempts.sweeps(connection),
        heads=tuple(
            HeadRow(r.name, r.variant_id, r.weights_sha256, json.loads(r.card), r.created_utc)
            for r in connection.execute(select(models.head).order_by(literal_column("rowid")))
        ),
        stages=tuple(
            StageRow(r.head, r.decision_id, r.outcome, r.detail, json.loads(r.signature),
                     r.created_utc)
            for r in connection.execute(select(models.head_stage).order_by(models.head_stage.c.id))
        ),
        patches=tuple(
            PatchRow(**{**r._asdict(), "gates": json.loads(r.gates)})
            for r in connection.execute(select(models.patch).order_by(models.patch.c.variant_id))
        ),
    )


def _campaigns(connection: Connection) -> tuple[CampaignRow, ...]:
    ends = {r.campaign_id: r.reason for r in connection.execute(select(models.campaign_end))}
    return tuple(
        CampaignRow(
            r.id, Settings.from_dict(json.loads(r.settings)), json.loads(r.first_config),
            json.loads(r.start_config), r.box, r.created_utc, ends.get(r.id),
        )
        for r in connection.execute(select(models.campaign).order_by(models.campaign.c.id))
    )


def _runs(connection: Connection) -> dict[str, list[RunRow]]:
    run, end, log = models.run, models.run_end, models.log
    joined = run.outerjoin(end, run.c.id == end.c.run_id).outerjoin(log, run.c.id == log.c.run_id)
    query = (
        select(
            run.c.id, run.c.block_id, run.c.slot, run.c.created_utc, end.c.outcome, end.c.code,
            end.c.detail, end.c.started_utc, end.c.ended_utc, end.c.wall_ns, end.c.evidence,
            log.c.sha256,
        )
        .select_from(joined)
        .order_by(run.c.block_id, run.c.slot)
    )
    out: dict[str, list[RunRow]] = defaultdict(list)
    for r in connection.execute(query):
        out[r.block_id].append(
            RunRow(r.id, r.block_id, r.slot, r.created_utc)
            if r.outcome is None
            else RunRow(
                r.id, r.block_id, r.slot, r.created_utc, r.outcome, r.code, r.detail,
                r.started_utc, r.ended_utc, r.wall_ns / 1e9, r.sha256, json.loads(r.evidence),
            )
        )
    return out


def _blocks(connection: Connection, runs: Mapping[str, list[RunRow]]) -> dict[str, list[BlockRow]]:
    estimates = {r.block_id: r for r in connection.execute(select(models.block))}
    guards, by_prompt = _guards(connection), _by_prompt(connection)
    mates = {r.block_id: r.mate_id for r in connection.execute(select(models.screen_plan))}
    answers = _screens(connection)
    known = {run.id: run for found in runs.values() for run in found}
    openings = {r.block_id: replace(known[r.run_id], slot=0)
                for r in connection.execute(select(models.screen_opening))}
    voids = {r.block_id: r for r in connection.execute(select(models.block_void))}
    out: dict[str, list[BlockRow]] = defaultdict(list)
    for r in connection.execute(select(models.block_plan).order_by(models.block_plan.c.serial)):
        measured, void = estimates.get(r.id), voids.get(r.id)
        out[r.variant_id].append(
            BlockRow(
                r.serial, r.id, r.variant_id, r.number, bool(r.hot), r.pattern, r.seed, r.why,
                runs=tuple(runs.get(r.id, ())),
                estimate=_estimate(measured, guards.get(r.id, ()), by_prompt.get(r.id, ()))
                if measured
                else None,
                ruler_id=measured.ruler_id if measured else None,
                source_sha256=measured.source_sha256 if measured else None,
                void_code=void.code if void else None,
                void_detail=void.detail if void else "",
                screen=r.id in mates,
                mate_id=mates.get(r.id),
                answers=tuple(answers.get(r.id, ())),
                opening=openings.get(r.id),
            )
        )
    return out


def _guards(connection: Connection) -> dict[str, tuple[tuple[str, float], ...]]:
    table, out = models.block_guard, defaultdict(list)
    for r in connection.execute(select(table).order_by(table.c.block_id, table.c.name)):
        out[r.block_id].append((r.name, r.effect))
    return {block_id: tuple(pairs) for block_id, pairs in out.items()}


def _by_prompt(connection: Connection) -> dict[str, tuple[PromptRounds, ...]]:
    table, out = models.block_prompt, defaultdict(list)
    for r in connection.execute(select(table).order_by(table.c.block_id, table.c.prompt)):
        out[r.block_id].append(
            PromptRounds(r.prompt, r.category, bool(r.held_out), r.made, r.incumbent, r.candidate)
        )
    return {block_id: tuple(rows) for block_id, rows in out.items()}


def _screens(connection: Connection) -> dict[str, list[ScreenRow]]:
    out: dict[str, list[ScreenRow]] = defaultdict(list)
    for r in connection.execute(select(models.screen).order_by(models.screen.c.variant_id)):
        said = Screened(r.gain, r.sd, r.nu, r.needed, r.low, r.high)
        out[r.block_id].append(
            ScreenRow(r.block_id, r.variant_id, r.ruler_id, r.source_sha256, said)
        )
    return out


def _estimate(
    row: Any, guards: tuple[tuple[str, float], ...], by_prompt: tuple[PromptRounds, ...]
) -> BlockEstimate:
    return BlockEstimate(
        effect=row.effect, contrast=row.contrast, within_sd=row.within_sd, prompts=row.prompts,
        level_log_ms=row.level_log_ms, metric=row.metric, prompt_sd=row.prompt_sd,
        loads=row.loads, tokens=row.tokens,
        categories=tuple((name, value) for name, value in json.loads(row.categories)),
        guards=guards,
        by_prompt=by_prompt,
    )


def _decisions(connection: Connection) -> tuple[DecisionRow, ...]:
    rows = connection.execute(select(models.decision).order_by(models.decision.c.id)).all()
    newer = {r.supersedes: r.id for r in rows if r.supersedes is not None}
    return tuple(
        DecisionRow(
            r.id, r.variant_id, r.ending, r.code, r.sentence, bool(r.is_null), r.n, r.mean, r.low,
            r.high, r.nu, r.e_value, r.alpha_t, r.test, r.promotions_before, r.rule_version,
            json.loads(r.details), r.created_utc, Rule(**json.loads(r.rule)), r.supersedes,
            newer.get(r.id),
        )
        for r in rows
    )


def _variants(
    connection: Connection,
    blocks: Mapping[str, list[BlockRow]],
    standing: Mapping[str, DecisionRow],
) -> tuple[VariantRow, ...]:
    known = levers(connection)
    answers = (a for found in blocks.values() for b in found for a in b.answers)
    screened = {a.variant_id: a for a in answers}
    return tuple(
        VariantRow(
            r.id, r.campaign_id, known[r.lever_identity], r.purpose, json.loads(r.incumbent),
            json.loads(r.candidate), r.from_decision, r.predicted_gain, r.why, r.created_utc,
            tuple(blocks.get(r.id, ())), standing.get(r.id), screened.get(r.id),
        )
        for r in connection.execute(select(models.variant).order_by(models.variant.c.id))
    )


def levers(connection: Connection) -> dict[str, Lever]:
    """Every lever that was ever tried, by the identity that it is stored under."""
    return {r.identity: _lever(r) for r in connection.execute(select(models.lever))}


def _lever(row: Any) -> Lever:
    return Lever(
        row.name, row.kind, json.loads(row.change), row.claim, row.falsify, row.predicted_gain,
        row.ceiling, bool(row.hot), row.family, bool(row.is_null), row.metric, sweep=row.sweep,
    )


def measurements(connection: Connection, run_id: str) -> tuple[Measurement, ...]:
    """Every measurement of one run, in the order entered."""
    t = models.measurement.c
    query = (
        select(t.arm, t.prompt, t.category, t.repeat, t.metric, t.numerator, t.denominator, t.unit,
               t.counted, t.line)
        .where(t.run_id == run_id)
        .order_by(t.id)
    )  # fmt: skip
    # Unpacked by position: there are thousands, and names cost more than the numbers do.
    return tuple(
        Measurement(*row[:8], bool(row[8]), row[9]) for row in connection.execute(query)
    )


def effective_configs(connection: Connection) -> dict[str, Mapping[str, Any]]:
    """What the engine made of each requested configuration (by the latter's stored JSON)."""
    arm = models.arm.c
    # Of each configuration the newest row, which is the one that SQLite shows beside max().
    query = select(arm.requested, arm.effective, func.max(literal_column("rowid"))).group_by(
        arm.requested
    )
    return {row[0]: json.loads(row[1]) for row in connection.execute(query)}


def fingerprints(connection: Connection, block_id: str) -> dict[str, str]:
    """The fingerprint of every arm that the loads of a block measured so far."""
    opening = select(models.screen_opening.c.run_id).where(
        models.screen_opening.c.block_id == block_id
    )
    query = (
        select(models.arm.c.name, models.arm.c.fingerprint)
        .join(models.run, models.run.c.id == models.arm.c.run_id)
        .where((models.run.c.block_id == block_id) | models.run.c.id.in_(opening))
    )
    return {row.name: row.fingerprint for row in connection.execute(query)}


def manifest(connection: Connection, run_id: str) -> Mapping[str, Any]:
    """The stored manifest of a run; KeyError when there is no such run."""
    row = connection.execute(
        select(models.run.c.manifest).where(models.run.c.id == run_id)
    ).first()
    if row is None:
        raise KeyError(run_id)
    try:
        stored: Mapping[str, Any] = json.loads(row.manifest)
    except ValueError:
        raise LedgerError(f"the ledger is damaged: run {run_id} has no readable manifest") from None
    return stored


def newest_campaign(connection: Connection) -> int | None:
    """The number of the newest campaign; None before the first."""
    number = connection.execute(select(func.max(models.campaign.c.id))).scalar()
    return None if number is None else int(number)


def ruler_id(connection: Connection, identity: str) -> int:
    """The key of a stored ruler."""
    query = select(models.ruler.c.id).where(models.ruler.c.identity == identity)
    return int(connection.execute(query).scalar_one())
