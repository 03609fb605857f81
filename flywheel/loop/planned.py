"""What is about to happen goes on record first: a campaign, a block, a run, a lever not built.

Each function is one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flywheel.errors import LedgerError
from flywheel.ledger import models, views
from flywheel.ledger.store import Ledger
from flywheel.ledger.writer import Writer
from flywheel.lever import Lever
from flywheel.loop.step import NextBlock, PricedOut
from flywheel.loop.verdicts import append_decision
from flywheel.run.manifest import Manifest
from flywheel.statistics.campaign import Settings
from flywheel.statistics.decide import Verdict


def open_campaign(
    ledger: Ledger,
    settings: Settings,
    *,
    start: Mapping[str, Any],
    box: str,
    now_utc: str,
    first: Mapping[str, Any] | None = None,
) -> int:
    """Declare an epoch; returns its number. `first` is the frozen anchor.

    Without `first` the anchor is the first campaign's, or `start` in a new ledger.
    """
    with ledger.transaction() as writer:
        view = views.load(writer.connection)
        frozen = first or (view.campaigns[0].first_config if view.campaigns else start)
        return writer.append(
            models.campaign,
            label=settings.label,
            alpha=settings.alpha,
            gamma=settings.gamma,
            budget=settings.budget,
            settings=settings.as_dict(),
            first_config=dict(frozen),
            start_config=dict(start),
            box=box,
            created_utc=now_utc,
        )


def close_campaign(ledger: Ledger, campaign_id: int, reason: str, *, now_utc: str) -> None:
    """Say why a campaign ended; a second end is refused by the ledger."""
    with ledger.transaction() as writer:
        writer.append(
            models.campaign_end, campaign_id=campaign_id, reason=reason, created_utc=now_utc
        )


def plan_block(ledger: Ledger, step: NextBlock, *, now_utc: str) -> None:
    """Append what the plan chose, with its reason. Safe to repeat for a block already planned."""
    if not step.new_block:
        return
    with ledger.transaction() as writer:
        if step.new_variant:
            _append_variant(
                writer, step.variant_id, step.lever, step.purpose, step.incumbent,
                step.candidate, step.from_decision, step.why, now_utc,
            )
        if (mate := step.mate) is not None:
            _append_variant(
                writer, mate.variant_id, mate.lever, step.purpose, step.incumbent, mate.candidate,
                step.from_decision, f"screen, with {step.lever.name}", now_utc,
            )
        writer.append(
            models.block_plan,
            serial=int(step.block_id[1:]),
            id=step.block_id,
            variant_id=step.variant_id,
            number=step.number,
            hot=step.hot,
            pattern=step.pattern,
            seed=step.seed,
            why=step.why,
            created_utc=now_utc,
        )
        if (choice := step.choice) is not None:
            writer.append(
                models.choice, block_id=step.block_id, value=choice.value, terms=choice.terms,
                runners_up=choice.runners_up, created_utc=now_utc,
            )
        if step.screen:
            writer.append(
                models.screen_plan, block_id=step.block_id,
                mate_id=None if mate is None else mate.variant_id, created_utc=now_utc,
            )
        if step.opens_with is not None:
            writer.append(
                models.screen_opening, block_id=step.block_id, run_id=step.opens_with,
                created_utc=now_utc,
            )


def _append_variant(
    writer: Writer,
    variant_id: str,
    lever: Lever,
    purpose: str,
    incumbent: Mapping[str, Any],
    candidate: Mapping[str, Any],
    from_decision: int | None,
    why: str,
    now_utc: str,
) -> None:
    campaign_id = views.newest_campaign(writer.connection)
    if campaign_id is None:
        raise LedgerError("the ledger has no campaign yet")
    writer.append_once(
        models.lever, "identity",
        identity=lever.identity, name=lever.name, kind=lever.kind, change=dict(lever.change),
        claim=lever.claim, falsify=lever.falsify, predicted_gain=lever.predicted_gain,
        ceiling=lever.ceiling, hot=lever.hot, family=lever.family, is_null=lever.null,
        metric=lever.metric, sweep=lever.sweep, created_utc=now_utc,
    )
    writer.append(
        models.variant,
        id=variant_id, campaign_id=campaign_id, lever_identity=lever.identity, purpose=purpose,
        incumbent=dict(incumbent), candidate=dict(candidate), from_decision=from_decision,
        predicted_gain=lever.predicted_gain, why=why, created_utc=now_utc,
    )


def price_out(ledger: Ledger, step: PricedOut, *, now_utc: str) -> None:
    """Close a lever for its ceiling, without a run and without spending budget."""
    with ledger.transaction() as writer:
        _append_variant(
            writer, step.variant_id, step.lever, "lever", step.incumbent, step.candidate, None,
            step.why, now_utc,
        )
        view = views.load(writer.connection)
        assert view.campaign is not None
        verdict = Verdict(step.ending, step.code, step.why, 0, None, 0.0, 0.0)
        variant = view.variant(step.variant_id)
        append_decision(writer, view, variant, verdict, view.campaign.settings.rule, now_utc)


def start_run(ledger: Ledger, manifest: Manifest, *, slot: int, now_utc: str) -> None:
    """Append a planned run, before it is launched."""
    with ledger.transaction() as writer:
        writer.append(
            models.run,
            id=manifest.run_id,
            block_id=manifest.block_id,
            slot=slot,
            manifest=manifest.to_json(),
            created_utc=now_utc,
        )
