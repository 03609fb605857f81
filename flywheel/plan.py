"""What to run next: a pure function of the ledger's view and the declared levers.

Order of business: stop if a number can no longer be trusted; finish what is open; calibrate the
ruler with null blocks; place a canary; measure the best against the frozen first configuration
when that is due; else the lever with the highest expected gain per minute. Every choice carries
one line that says why.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import Any

from flywheel import best as best_of
from flywheel.band import log_gain
from flywheel.best import Best
from flywheel.eligible import Candidate, Ineligible, admit
from flywheel.halting import Evidence, alarms, null_alarm
from flywheel.ledger.rows import BlockRow, CampaignRow, VariantRow, View
from flywheel.lever import KINDS, Lever, null_lever
from flywheel.step import Load, NextBlock, PricedOut, Step, Stop

DEFAULT_LOAD_MINUTES = 2.0
BLOCKS_EXPECTED = 3

__all__ = [
    "Load", "NextBlock", "PricedOut", "Step", "Stop", "halted", "load_minutes", "next_step",
    "null_alarm", "ranked", "variant_id",
]


def next_step(
    view: View,
    levers: Sequence[Lever],
    *,
    closing: bool = False,
    effective: Mapping[str, Mapping[str, Any]] | None = None,
    kinds: Collection[str] = KINDS,
    settled: Collection[Evidence] = (),
) -> Step:
    """The next thing to do.

    `effective` maps stored requested configurations to what the engine made of them (so that a
    lever at a default is recognised as being in the incumbent already). `closing` stops new
    levers and only finishes with the headline measurement. `settled` is the evidence of halts that
    were resumed. Raises LedgerError without a campaign.
    """
    best = best_of.fold(view)
    campaign = view.campaign
    assert campaign is not None
    mine = view.of_campaign(campaign.id)
    if reason := halted(view, campaign, settled):
        return Stop(reason, halt=True)
    if (going := _unfinished(view, campaign, mine, best, closing)) is not None:
        return going
    nulls = [v for v in mine if v.purpose == "null"]
    if not closing and sum(len(v.measured) for v in nulls) < campaign.settings.calibration:
        return _calibrate(view, campaign, nulls, best)
    spent = view.budget(campaign.id).left == 0
    ready, refused = admit(view, levers, best, effective or {}, kinds)
    if closing or spent:
        ready = ()
    if (anchor := _anchor(view, campaign, best, last=not ready)) is not None:
        return anchor
    if closing:
        return Stop("closing: told to finish")
    if spent:
        budget = campaign.settings.budget
        return Stop(f"the error budget of this epoch, {budget} tests, is spent; declare a new one")
    if _canary_due(campaign, mine, len(ready)):
        return _open(view, campaign, best, null_lever(), "canary", _canary_why(campaign))
    if not ready:
        return Stop(_dry(refused))
    return _lever_step(view, campaign, best, ready)


def halted(
    view: View, campaign: CampaignRow, settled: Collection[Evidence] = ()
) -> str | None:
    """Why no number of this campaign can be trusted any more; None while all is well."""
    found = alarms(view, campaign, settled)
    return found[0].reason if found else None


def _unfinished(
    view: View,
    campaign: CampaignRow,
    mine: Sequence[VariantRow],
    best: Best,
    closing: bool,
) -> Step | None:
    for variant in mine:
        for block in variant.blocks:
            if block.open:
                return _again(variant, block)
    for variant in mine:
        if variant.purpose in ("lever", "canary") and variant.decision is None and not closing:
            return _another(view, campaign, variant, _progress(campaign, variant))
    for variant in mine:
        if variant.purpose == "null" and variant.voids_in_a_row >= campaign.settings.attempts:
            code, times = variant.blocks[-1].void_code, campaign.settings.attempts
            return Stop(f"the ruler cannot be calibrated: {code}, {times} times")
    return None


def _again(variant: VariantRow, block: BlockRow) -> NextBlock:
    return NextBlock(
        block.id, variant.id, variant.purpose, variant.lever, variant.incumbent, variant.candidate,
        block.hot, block.pattern, block.seed, block.number, block.why, False, False,
        variant.from_decision, block.runs,
    )


def _progress(campaign: CampaignRow, variant: VariantRow) -> str:
    n, voids = len(variant.measured), variant.voids_in_a_row
    said = f"block {n + 1} of at most {campaign.settings.rule.n_max}: not decided after {n}"
    if not voids:
        return said
    last = variant.blocks[-1].void_code
    return f"{said}; retry {voids} of {campaign.settings.attempts - 1} after {last}"


def _another(view: View, campaign: CampaignRow, variant: VariantRow, why: str) -> NextBlock:
    serial, pattern, seed = _draw(view, campaign)
    hot = variant.blocks[-1].hot if variant.blocks else variant.lever.hot
    return NextBlock(
        f"b{serial:05d}", variant.id, variant.purpose, variant.lever, variant.incumbent,
        variant.candidate, hot, pattern, seed, len(variant.blocks) + 1, why, False, True,
        variant.from_decision,
    )


def _open(
    view: View,
    campaign: CampaignRow,
    best: Best,
    lever: Lever,
    purpose: str,
    why: str,
    *,
    hot: bool | None = None,
) -> NextBlock:
    serial, pattern, seed = _draw(view, campaign)
    anchor = purpose == "anchor"
    incumbent = best.first_config if anchor else best.config
    candidate = best.config if anchor else {**best.config, **lever.change}
    return NextBlock(
        f"b{serial:05d}", variant_id(view), purpose, lever, dict(incumbent), dict(candidate),
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


def _calibrate(
    view: View, campaign: CampaignRow, nulls: Sequence[VariantRow], best: Best
) -> NextBlock:
    done = sum(len(v.measured) for v in nulls)
    why = f"null {done + 1} of {campaign.settings.calibration}: the spread that a lever must beat"
    if nulls:
        return _another(view, campaign, nulls[-1], why)
    return _open(view, campaign, best, null_lever(), "null", why)


def _canary_due(campaign: CampaignRow, mine: Sequence[VariantRow], waiting: int) -> bool:
    items = [v for v in mine if v.purpose in ("lever", "canary")]
    canaries = sum(v.purpose == "canary" for v in items)
    every = campaign.settings.canary_every
    period = len(items) // every
    if canaries > period:
        return False
    if not waiting:
        return canaries == 0
    # In a short queue the place must lie within it, or the canary would always come last.
    room = min(every, len(items) + waiting + 1 - canaries) if period == 0 else every
    dice = random.Random(f"canary {campaign.settings.seed} {campaign.id} {period}")
    place = period * every + int(dice.random() * room)
    return len(items) >= place


def _canary_why(campaign: CampaignRow) -> str:
    return f"canary: one item in {campaign.settings.canary_every}, at a drawn place"


def _anchor(view: View, campaign: CampaignRow, best: Best, *, last: bool) -> NextBlock | None:
    """A block of best against frozen first, when due: at the end, or every few promotions."""
    if not best.promotions:
        return None
    wanted = campaign.settings.anchor_blocks
    found = [v for v in best_of.anchors(view, best) if v.campaign_id == campaign.id]
    measured = sum(len(v.measured) for v in found)
    if measured >= wanted or (found and found[-1].voids_in_a_row >= campaign.settings.attempts):
        return None
    every = campaign.settings.anchor_every
    if not last and len(best.promotions) % every:
        return None
    why = f"anchor {measured + 1} of {wanted}: gains do not add, so the sum is measured"
    if found:
        return _another(view, campaign, found[-1], why)
    by_number = {v.decision.number: v for v in view.variants if v.decision is not None}
    hot = all(by_number[p].lever.hot for p in best.promotions)
    return _open(view, campaign, best, null_lever(), "anchor", why, hot=hot)


def _lever_step(
    view: View, campaign: CampaignRow, best: Best, ready: Sequence[Candidate]
) -> NextBlock | PricedOut:
    for candidate in ready:
        lever = candidate.lever
        bar = campaign.settings.rule.delta_min
        if lever.ceiling is not None and lever.ceiling < bar:
            return PricedOut(
                lever, variant_id(view), dict(best.config), {**best.config, **lever.change},
                f"priced out: its ceiling of {lever.ceiling * 100:.2g} % is under the bar of "
                f"{bar * 100:.2g} %",
            )
    first, why = ranked(view, ready)[0]
    return _open(view, campaign, best, first.lever, "lever", why)


def ranked(view: View, ready: Sequence[Candidate]) -> tuple[tuple[Candidate, str], ...]:
    """Candidates by predicted gain per minute, best first, each with its reason.

    P(win) is the mean of a Beta(1, 2) prior updated by the family's decided levers.
    """
    minutes = load_minutes(view)
    scored = []
    for candidate in ready:
        lever = candidate.lever
        chance = _p_win(view, lever.family) * candidate.discount
        cost = minutes * BLOCKS_EXPECTED * (1 if lever.hot else 4)
        why = f"P(win) {chance:.2f} x {lever.predicted_gain * 100:.3g} % / {cost:.3g} min"
        score = chance * log_gain(lever.predicted_gain) / cost
        scored.append((-score, lever.name, candidate, why + candidate.note))
    scored.sort(key=lambda s: s[:2])
    return tuple((candidate, why) for _, _, candidate, why in scored)


def load_minutes(view: View) -> float:
    """Median wall time of a good load so far, in minutes; a guess before the first."""
    walls = [r.wall_s for b in view.blocks() for r in b.runs if r.outcome == "ok" and r.wall_s > 0]
    return median(walls) / 60 if walls else DEFAULT_LOAD_MINUTES


def _p_win(view: View, family: str) -> float:
    decided = [
        v.decision.promoted
        for v in view.variants
        if v.purpose == "lever" and v.lever.family == family
        and v.decision is not None and v.decision.ending != "void"
    ]
    return (1 + sum(decided)) / (3 + len(decided))


def _dry(refused: Sequence[Ineligible]) -> str:
    tail = f"; {len(refused)} are closed, duplicates or in the incumbent already" if refused else ""
    return f"no lever is left to try{tail}"
