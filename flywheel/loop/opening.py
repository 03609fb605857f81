"""A variant's next block, or the first of a new one: its name, and what is drawn. Pure."""

from __future__ import annotations

import random

from flywheel.best import Best
from flywheel.ledger.rows import BlockRow, CampaignRow, VariantRow, View
from flywheel.lever import Lever
from flywheel.loop.step import Mate, NextBlock


def again(view: View, variant: VariantRow, block: BlockRow) -> NextBlock:
    """A block that was planned already, for the loads that it still wants."""
    mate = None if block.mate_id is None else view.variant(block.mate_id)
    return NextBlock(
        block.id, variant.id, variant.purpose, variant.lever, variant.incumbent, variant.candidate,
        block.hot, block.pattern, block.seed, block.number, block.why, False, False,
        variant.from_decision, block.runs, block.screen,
        None if mate is None else Mate(mate.id, mate.lever, mate.candidate),
        None if block.opening is None else block.opening.id,
    )


def another(view: View, campaign: CampaignRow, variant: VariantRow, why: str) -> NextBlock:
    """One block more of a variant."""
    serial, pattern, seed = _draw(view, campaign)
    hot = variant.blocks[-1].hot if variant.blocks else variant.lever.hot
    return NextBlock(
        f"b{serial:05d}", variant.id, variant.purpose, variant.lever, variant.incumbent,
        variant.candidate, hot, pattern, seed, len(variant.blocks) + 1, why, False, True,
        variant.from_decision,
    )


def first_of(
    view: View,
    campaign: CampaignRow,
    best: Best,
    lever: Lever,
    purpose: str,
    why: str,
    *,
    hot: bool | None = None,
) -> NextBlock:
    """The first block of a new variant; of the kind that the lever is, unless `hot` says."""
    serial, pattern, seed = _draw(view, campaign)
    anchor = purpose == "anchor"
    incumbent = best.first_config if anchor else best.config
    variant = variant_id(view)
    candidate = best.config if anchor else lever.applied(best.config, variant)
    return NextBlock(
        f"b{serial:05d}", variant, purpose, lever, dict(incumbent), dict(candidate),
        lever.hot if hot is None else hot, pattern, seed, 1, why, True, True, best.decision,
    )


def variant_id(view: View) -> str:
    """The id of the next variant."""
    return f"v{len(view.variants) + 1:04d}"


def _draw(view: View, campaign: CampaignRow) -> tuple[int, str, int]:
    """Serial number, arm order and seed of the next block, drawn from the campaign's seed."""
    serial = len(view.blocks()) + 1
    dice = random.Random(f"block {campaign.settings.seed} {campaign.id} {serial}")
    return serial, dice.choice(("ABBA", "BAAB")), dice.randrange(2**31)
