"""What to run next: a pure function of the ledger's view and the declared levers.

Order of business: stop if a number can no longer be trusted; finish what is open; calibrate the
ruler with null blocks; place a canary; measure the best against the frozen first configuration
when that is due; confirm what passed its screen; else the lever with the highest expected gain per
minute, through a screen where that saves loads or tests; when the queue is dry, take an old
promotion back to see whether it is still worth having; when that is dry too, or the results are
poor, look for more levers (`phases`). Every choice carries one line that says why.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from flywheel import best as best_of
from flywheel.best import Best, engine_part
from flywheel.ledger.rows import CampaignRow, VariantRow, View
from flywheel.lever import KINDS, Lever, canonical, null_lever
from flywheel.loop import phases
from flywheel.loop.ablation import ablation
from flywheel.loop.choosing import blind_to_heads, calibrate, confirmation, lever_step
from flywheel.loop.eligible import Ineligible, admit
from flywheel.loop.halting import Evidence, alarms
from flywheel.loop.opening import again, another, first_of
from flywheel.loop.ranking import ranked
from flywheel.loop.sessions import session_gate
from flywheel.loop.step import (
    AskProposer,
    Load,
    NextBlock,
    PhaseChange,
    PricedOut,
    Prove,
    Rest,
    Step,
    Stop,
    TakeProfile,
)
from flywheel.propose.attempt import Ask, Asking, Later

__all__ = [
    "AskProposer", "Load", "NextBlock", "PhaseChange", "PricedOut", "Prove", "Rest", "Step", "Stop",
    "TakeProfile", "halted", "next_step",
]


def by_time(levers: Sequence[Lever]) -> bool:
    """Whether a campaign of `levers` needs the spread of loads, and the best measured once more.

    Heads are judged on counts that repeat themselves, and a price is promoted by nobody.
    """
    return not levers or any(x.metric == "ms_per_token" for x in levers)


def next_step(
    view: View,
    levers: Sequence[Lever],
    *,
    first: Sequence[str] = (),
    closing: bool = False,
    profiles: bool = False,
    effective: Mapping[str, Mapping[str, Any]] | None = None,
    kinds: Collection[str] = KINDS,
    settled: Collection[Evidence] = (),
    now_utc: str | None = None,
    asking: Asking | None = None,
    head_prompts: int | None = None,
) -> Step:
    """The next thing to do.

    `first` names the levers that a person wants tried before all others. `effective` maps stored
    requested configurations to what the engine made of them (so that a lever at a default is
    recognised as being in the incumbent already). `closing` stops new levers and only finishes
    with the headline measurement; `profiles` says that the incumbent may be profiled when the
    campaign's phases call for it. `settled` is the evidence of halts that were resumed. `now_utc`
    tells how old the last load is; None: it has just ended. `asking` says who may be asked for
    levers. `head_prompts` is on how many a head would be judged; None: enough. Raises LedgerError
    without a campaign.
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
    timed = by_time(levers)
    spread = sum(len(v.measured) for v in nulls)
    if timed and not closing and spread < campaign.settings.calibration:
        return calibrate(view, campaign, nulls, best)
    if campaign.settings.canaries:
        return _next_canary(view, campaign, mine, best, closing)
    spent = view.budget(campaign.id).left == 0
    blind = blind_to_heads(view, campaign, head_prompts)
    sees = head_prompts is not None and blind is None
    ready, refused = admit(view, levers, best, effective or {}, kinds, sees_heads=sees)
    ready, gated = session_gate(mine, campaign.settings.session, ready)
    refused = (*refused, *gated)
    if closing or spent:
        ready = ()
    passed = None if closing or spent else confirmation(mine, ready)
    more = bool(ready) or passed is not None
    undo = None if closing or spent or more else ablation(view, best, effective or {})
    dry, seeks = not more and undo is None, profiles and not closing and not spent
    step = None
    if seeks:
        step = _phase_step(
            view, campaign, best, effective or {}, dry=dry, asking=asking, now_utc=now_utc
        )
        if step is not None and not isinstance(step, Rest):
            return step
    if timed and (anchor := _anchor(view, campaign, best, last=dry)) is not None:
        return anchor
    if isinstance(step, Rest) and dry:
        return step
    if closing:
        return Stop("closing: told to finish")
    if spent:
        budget = campaign.settings.budget
        return Stop(f"the error budget of this epoch, {budget} tests, is spent; declare a new one")
    if timed and _canary_due(campaign, mine, len(ready)):
        # A canary is of the kind of what comes next, and is confirmed without a screen. For one
        # cold lever alone it would cost more than the lever.
        several = sum(not c.lever.hot for c in ready) > 1
        cold = several and not ranked(view, ready, first)[0].candidate.lever.hot
        return first_of(
            view, campaign, best, null_lever(), "canary", _canary_why(campaign), hot=not cold
        )
    if passed is not None:
        said = passed.screened.answer.sentence if passed.screened else ""
        return another(view, campaign, passed, f"{said}; to be confirmed on fresh blocks")
    if undo is not None:
        return first_of(view, campaign, best, undo, "lever", f"ablation: {undo.claim}")
    if not ready:
        return Stop(_dry(refused) + (phases.said(view, campaign) if seeks else ""))
    return lever_step(view, campaign, best, ready, first, now_utc, blind)


def _phase_step(
    view: View,
    campaign: CampaignRow,
    best: Best,
    effective: Mapping[str, Mapping[str, Any]],
    *,
    dry: bool,
    asking: Asking | None,
    now_utc: str | None,
) -> PhaseChange | TakeProfile | AskProposer | Rest | None:
    """A change of phase that is due, or what the phase asks for: a profile, a proposer."""
    rules = campaign.settings.phases
    if rules is None:
        return None
    change = phases.due(view, campaign, rules, dry=dry, asking=asking, now_utc=now_utc)
    if change is not None:
        return change
    phase = phases.current(view, campaign)
    if phase == phases.PROPOSE:
        asked = phases.question(view, campaign, asking, now_utc)
        if isinstance(asked, Later):
            return Rest(asked.not_before_utc, asked.why)
        assert isinstance(asked, Ask)
        return AskProposer(asked.proposer, "the profile leads nowhere new")
    if phase != phases.EXHAUST:
        return None
    resolved = {**effective.get(canonical(engine_part(best.config)), {}), **best.config}
    # A round verifies what was drafted and one token more.
    rows = 1 + int(resolved.get("draft_width", 0))
    return TakeProfile(dict(best.config), rows, "where does the incumbent lose its time?")


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
                return again(view, variant, block)
    for variant in mine:
        if variant.lever.kind == "head" and variant.decision is None and variant.measured:
            return Prove(variant.id, variant.lever)
        undecided = variant.purpose in ("lever", "canary") and variant.decision is None
        if undecided and not variant.waiting and not closing:
            return another(view, campaign, variant, _progress(campaign, variant))
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


def _progress(campaign: CampaignRow, variant: VariantRow) -> str:
    n, voids = len(variant.measured), variant.voids_in_a_row
    said = f"block {n + 1} of at most {campaign.settings.rule.n_max}: not decided after {n}"
    if not voids:
        return said
    last = variant.blocks[-1].void_code
    return f"{said}; retry {voids} of {campaign.settings.attempts - 1} after {last}"


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
    return first_of(view, campaign, best, null_lever(), "canary", f"canary {done + 1} of {wanted}")


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
        return another(view, campaign, found[-1], why)
    by_number = {v.decision.number: v for v in view.variants if v.decision is not None}
    hot = all(by_number[p].lever.hot for p in best.promotions)
    return first_of(view, campaign, best, null_lever(), "anchor", why, hot=hot)


def _dry(refused: Sequence[Ineligible]) -> str:
    tail = f"; {len(refused)} are closed, duplicates or in the incumbent already" if refused else ""
    return f"no lever is left to try{tail}"
