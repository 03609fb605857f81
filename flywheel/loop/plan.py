"""What to run next: a pure function of the ledger's view and the declared levers.

Order of business: stop if a number can no longer be trusted; finish what is open; calibrate the
ruler with null blocks; place a canary; measure the best against the frozen first configuration
when that is due; confirm what passed its screen; else the lever with the highest expected gain per
minute, through a screen where that saves loads or tests; when the queue is dry, take an old
promotion back to see whether it is still worth having. Every choice carries one line that says why.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flywheel import best as best_of
from flywheel.best import Best
from flywheel.ledger.rows import BlockRow, CampaignRow, VariantRow, View
from flywheel.lever import KINDS, Lever, null_lever
from flywheel.loop.ablation import ablation
from flywheel.loop.bracket import opened
from flywheel.loop.eligible import Candidate, Ineligible, admit
from flywheel.loop.halting import Evidence, alarms
from flywheel.loop.ranking import ranked
from flywheel.loop.sessions import session_gate
from flywheel.loop.step import Load, Mate, NextBlock, PricedOut, Prove, Step, Stop
from flywheel.statistics.band import Pool, pool
from flywheel.statistics.decide import detectable
from flywheel.statistics.history import kind_of, series_of
from flywheel.statistics.screen import spread_known

__all__ = [
    "Load", "NextBlock", "PricedOut", "Prove", "Step", "Stop", "halted", "next_step", "variant_id",
]


def next_step(
    view: View,
    levers: Sequence[Lever],
    *,
    closing: bool = False,
    effective: Mapping[str, Mapping[str, Any]] | None = None,
    kinds: Collection[str] = KINDS,
    settled: Collection[Evidence] = (),
    now_utc: str | None = None,
) -> Step:
    """The next thing to do.

    `effective` maps stored requested configurations to what the engine made of them (so that a
    lever at a default is recognised as being in the incumbent already). `closing` stops new
    levers and only finishes with the headline measurement. `settled` is the evidence of halts that
    were resumed. `now_utc` tells how old the last load is; None: it has just ended. Raises
    LedgerError without a campaign.
    """
    best = best_of.fold(view)
    campaign = view.campaign
    assert campaign is not None
    mine = view.of_campaign(campaign.id)
    if reason := halted(view, campaign, settled):
        return Stop(reason, halt=True)
    if (going := _unfinished(view, campaign, mine, best, closing)) is not None:
        return going
    nulls = [v for v in mine if v.purpose == "null" and v.blocks[0].hot]
    # Heads are judged on counts that repeat themselves: there is no spread of loads to learn.
    timed = not levers or any(x.metric != "tau" for x in levers)
    spread = sum(len(v.measured) for v in nulls)
    if timed and not closing and spread < campaign.settings.calibration:
        return _calibrate(view, campaign, nulls, best)
    if campaign.settings.canaries:
        return _next_canary(view, campaign, mine, best, closing)
    spent = view.budget(campaign.id).left == 0
    ready, refused = admit(view, levers, best, effective or {}, kinds)
    ready, gated = session_gate(mine, campaign.settings.session, ready)
    refused = (*refused, *gated)
    if closing or spent:
        ready = ()
    passed = None if closing or spent else confirmation(mine, ready)
    more = bool(ready) or passed is not None
    undo = None if closing or spent or more else ablation(view, best, effective or {})
    last = not more and undo is None
    if timed and (anchor := _anchor(view, campaign, best, last=last)) is not None:
        return anchor
    if closing:
        return Stop("closing: told to finish")
    if spent:
        budget = campaign.settings.budget
        return Stop(f"the error budget of this epoch, {budget} tests, is spent; declare a new one")
    if timed and _canary_due(campaign, mine, len(ready)):
        # A canary is of the kind of what comes next, and is confirmed without a screen. For one
        # cold lever alone it would cost more than the lever.
        several = sum(not c.lever.hot for c in ready) > 1
        cold = several and not ranked(view, ready)[0][0].lever.hot
        return _open(
            view, campaign, best, null_lever(), "canary", _canary_why(campaign), hot=not cold
        )
    if passed is not None:
        said = passed.screened.answer.sentence if passed.screened else ""
        return _another(view, campaign, passed, f"{said}; to be confirmed on fresh blocks")
    if undo is not None:
        return _open(view, campaign, best, undo, "lever", f"ablation: {undo.claim}")
    if not ready:
        return Stop(_dry(refused))
    return _lever_step(view, campaign, best, ready, now_utc)


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
                return _again(view, variant, block)
    for variant in mine:
        if variant.lever.kind == "head" and variant.decision is None and variant.measured:
            return Prove(variant.id, variant.lever)
        undecided = variant.purpose in ("lever", "canary") and variant.decision is None
        if undecided and not variant.waiting and not closing:
            return _another(view, campaign, variant, _progress(campaign, variant))
    for variant in mine:
        if variant.purpose == "null" and variant.voids_in_a_row >= campaign.settings.attempts:
            return Stop(_uncalibrated(variant))
    return None


def _uncalibrated(variant: VariantRow) -> str:
    times = variant.voids_in_a_row
    codes = [one.void_code for one in variant.blocks if one.void_code not in (None, "blocked")]
    reasons = ", ".join(dict.fromkeys(str(code) for code in codes[-times:]))
    return (
        f"the ruler cannot be calibrated: {times} null blocks void in a row ({reasons}); "
        "put that right, then flywheel run --new-campaign"
    )


def _again(view: View, variant: VariantRow, block: BlockRow) -> NextBlock:
    mate = None if block.mate_id is None else view.variant(block.mate_id)
    return NextBlock(
        block.id, variant.id, variant.purpose, variant.lever, variant.incumbent, variant.candidate,
        block.hot, block.pattern, block.seed, block.number, block.why, False, False,
        variant.from_decision, block.runs, block.screen,
        None if mate is None else Mate(mate.id, mate.lever, mate.candidate),
        None if block.opening is None else block.opening.id,
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


def _calibrate(
    view: View,
    campaign: CampaignRow,
    nulls: Sequence[VariantRow],
    best: Best,
    *,
    hot: bool = True,
) -> NextBlock:
    done, settings = sum(len(v.measured) for v in nulls), campaign.settings
    wanted = settings.calibration if hot else settings.cold_calibration
    why = f"null {done + 1} of {wanted}: the spread that a lever must beat"
    if nulls:
        return _another(view, campaign, nulls[-1], why)
    return _open(view, campaign, best, null_lever(), "null", why, hot=hot)


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


def _next_canary(
    view: View, campaign: CampaignRow, mine: Sequence[VariantRow], best: Best, closing: bool
) -> Step:
    """The next item of a campaign that tries nothing but canaries."""
    wanted, done = campaign.settings.canaries, sum(v.purpose == "canary" for v in mine)
    if closing:
        return Stop("closing: told to finish")
    if done >= wanted:
        return Stop(f"all {wanted} canaries are decided")
    return _open(view, campaign, best, null_lever(), "canary", f"canary {done + 1} of {wanted}")


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
    view: View,
    campaign: CampaignRow,
    best: Best,
    ready: Sequence[Candidate],
    now_utc: str | None,
) -> NextBlock | PricedOut:
    for candidate in ready:
        if (priced := _priced(view, campaign, best, candidate.lever)) is not None:
            return priced
    # A family that is being screened goes first: the one that passed waits for all of them.
    begun = {v.lever.group for v in view.of_campaign(campaign.id) if v.waiting}
    order = sorted(ranked(view, ready), key=lambda c: c[0].lever.group not in begun)
    first, why = order[0]
    if not first.confirm and (screened := _screen_step(view, campaign, best, order)) is not None:
        return opened(view, screened, now_utc)
    return _open(view, campaign, best, first.lever, "lever", why)


def _priced(view: View, campaign: CampaignRow, best: Best, lever: Lever) -> PricedOut | None:
    """A lever whose ceiling is too low to be worth a run, or to be seen here; None otherwise."""
    if lever.ceiling is None:
        return None
    rule, past = campaign.settings.rule, _spread(view, campaign, lever, hot=lever.hot)
    variant = variant_id(view)
    place = (lever, variant, dict(best.config), lever.applied(best.config, variant))
    said = f"its ceiling of {lever.ceiling * 100:.2g} % is under"
    if lever.ceiling < rule.delta_min:
        bar = rule.delta_min * 100
        return PricedOut(*place, f"priced out: {said} the bar of {bar:.2g} %")
    n, alpha_t = rule.n_max, view.budget(campaign.id).alpha_t
    nu = past.nu + n - 1
    seen = detectable(n, past.variance * past.inflation, nu, alpha_t, rule) if past.nu else None
    if seen is None or lever.ceiling >= seen:
        return None
    said = f"unresolvable here: {said} the {seen * 100:.2g} % that {n} blocks could see"
    return PricedOut(*place, said, "inconclusive", "unresolvable")


def _screen_step(
    view: View,
    campaign: CampaignRow,
    best: Best,
    order: Sequence[tuple[Candidate, str]],
) -> NextBlock | None:
    """A screen that the first candidate is to go through; None when it goes straight on.

    A cold candidate is screened together with another one that is built and booted alike. A hot one
    is screened when levers that differ only in a number are to choose among themselves, or when
    more levers wait than there are tests left.
    """
    (first, why), rest = order[0], [c.lever for c, _ in order[1:] if not c.confirm]
    lever, mine = first.lever, view.of_campaign(campaign.id)
    if lever.kind == "head":
        return None
    family = [x for x in rest if x.group == lever.group]
    if lever.hot:
        begun = any(v.waiting and v.lever.group == lever.group for v in mine)
        scarce = len(order) > view.budget(campaign.id).left
        if not (family or begun or scarce):
            return None
        if not spread_known(_spread(view, campaign, lever, hot=True)):
            return None
        return replace(_open(view, campaign, best, lever, "lever", f"screen: {why}"), screen=True)
    mates = [x for x in (*family, *rest) if not x.hot and x.boot == lever.boot]
    if not mates:
        return None
    nulls = [v for v in mine if v.purpose == "null" and not v.blocks[0].hot]
    known = spread_known(_spread(view, campaign, lever, hot=False))
    if not known or sum(len(v.measured) for v in nulls) < campaign.settings.cold_calibration:
        return _calibrate(view, campaign, nulls, best, hot=False)
    step = _open(view, campaign, best, lever, "lever", f"screen, with {mates[0].name}: {why}")
    second = f"v{int(step.variant_id[1:]) + 1:04d}"
    mate = Mate(second, mates[0], mates[0].applied(best.config, second))
    return replace(step, screen=True, pattern="ABBA", mate=mate)


def _spread(view: View, campaign: CampaignRow, lever: Lever, *, hot: bool) -> Pool:
    """What this campaign's blocks of a kind say about the next one's spread."""
    kinds = (kind_of(b) for v in view.of_campaign(campaign.id) for b in v.measured)
    kind = next((k for k in kinds if k and (k.metric, k.hot) == (lever.metric, hot)), None)
    if kind is None:
        return Pool(0.0, 0.0)
    return pool(series_of(view, kind, len(view.blocks())))


def confirmation(mine: Sequence[VariantRow], open_: Sequence[Candidate]) -> VariantRow | None:
    """The screened variant to confirm next: the clearest, once its whole family was screened."""
    unscreened = {c.lever.group for c in open_}
    found = [v for v in mine if v.waiting and v.lever.group not in unscreened]

    def clear(variant: VariantRow) -> float:
        assert variant.screened is not None
        return variant.screened.answer.gain / variant.screened.answer.sd

    return max(found, key=clear, default=None)


def _dry(refused: Sequence[Ineligible]) -> str:
    tail = f"; {len(refused)} are closed, duplicates or in the incumbent already" if refused else ""
    return f"no lever is left to try{tail}"
