"""Where a campaign stands: exploit the queue, exhaust the profile, propose, or done. Pure.

    exploit -> exhaust   results in a row were poor, or the queue is dry
    exhaust -> exploit   the incumbent's profile led to levers that nobody had declared
            -> propose   it led to none, or its largest residual is the one of the last profile
    propose -> exploit   a proposer named levers that were admitted
            -> done      nobody is left to propose one
    done    -> exploit   a lever was worth something after all: the profile is another one now

A phase says where the next levers come from. Levers that wait are tried in any of them; only
`exhaust` profiles first.
"""

from __future__ import annotations

from collections.abc import Sequence

from flywheel.box.clock import count
from flywheel.ledger.rows import CampaignRow, DecisionRow, PhaseRow, ProfileRow, View
from flywheel.loop.ranking import tried
from flywheel.loop.step import PhaseChange
from flywheel.propose.attempt import Ask, Asking, Later, Nobody, Terms, following
from flywheel.statistics.band import log_gain
from flywheel.statistics.campaign import Phases

EXPLOIT, EXHAUST, PROPOSE, DONE = "exploit", "exhaust", "propose", "done"


def current(view: View, campaign: CampaignRow) -> str:
    """The phase that a campaign is in; it begins by exploiting what was declared."""
    last = _last(view, campaign)
    return EXPLOIT if last is None else last.phase


def due(
    view: View,
    campaign: CampaignRow,
    rules: Phases,
    *,
    dry: bool,
    asking: Asking | None = None,
    now_utc: str | None = None,
) -> PhaseChange | None:
    """The change of phase that the history calls for; None while there is none.

    `dry` says that no lever waits, `asking` who may be asked for one.
    """
    phase = current(view, campaign)
    if phase == EXPLOIT:
        return _out_of_exploit(view, campaign, rules, dry=dry)
    if phase == EXHAUST:
        return _out_of_exhaust(view, campaign)
    if phase == PROPOSE:
        return _out_of_propose(view, campaign, asking, now_utc)
    return _out_of_done(view, campaign, rules)


def _out_of_exploit(
    view: View, campaign: CampaignRow, rules: Phases, *, dry: bool
) -> PhaseChange | None:
    results = _results(view, campaign)
    poor = results[-rules.poor_results :]
    if len(poor) == rules.poor_results and all(_gain(d) < _bar(rules) for d in poor):
        numbers = tuple(d.number for d in poor)
        named = ", ".join(f"D{number}" for number in numbers)
        said = f"{len(poor)} results in a row under {rules.poor_gain * 100:.2g} % ({named})"
        return PhaseChange(EXHAUST, said, numbers)
    return PhaseChange(EXHAUST, "no lever is left to try") if dry else None


def _out_of_exhaust(view: View, campaign: CampaignRow) -> PhaseChange | None:
    """What the profile that this phase asked for has led to; None while there is none yet."""
    last, mine = _last(view, campaign), profiles(view, campaign)
    assert last is not None
    if not mine or mine[-1].phase < last.number:
        return None
    newest = mine[-1]
    if newest.failure:
        return PhaseChange(PROPOSE, f"the incumbent could not be profiled: {newest.failure}")
    led_to = f"{newest.levers} new levers" if newest.levers != 1 else "one new lever"
    if len(mine) > 1 and mine[-2].top == newest.top:
        return PhaseChange(PROPOSE, f"{newest.top} tops the profile again ({led_to} from it)")
    if not newest.levers:
        return PhaseChange(PROPOSE, f"the profile, with {newest.top} on top, led to no new lever")
    return PhaseChange(EXPLOIT, f"the profile, with {newest.top} on top, led to {led_to}")


def question(
    view: View, campaign: CampaignRow, asking: Asking | None, now_utc: str | None
) -> Ask | Later | Nobody:
    """Who is to be asked for levers in the phase that the campaign is in."""
    last = _last(view, campaign)
    mine = [a for a in view.attempts if a.campaign_id == campaign.id]
    phase = 0 if last is None else last.number
    names = () if asking is None else asking.proposers
    return following(mine, phase, names, Terms() if asking is None else asking.terms, now_utc)


def _out_of_propose(
    view: View, campaign: CampaignRow, asking: Asking | None, now_utc: str | None
) -> PhaseChange | None:
    last = _last(view, campaign)
    assert last is not None
    here = [a for a in view.attempts if a.phase == last.number and a.admitted]
    if here:
        number = count(here[-1].admitted, "lever")
        said = f"{here[-1].proposer} proposed {number} (attempt {here[-1].number})"
        return PhaseChange(EXPLOIT, said)
    asked = question(view, campaign, asking, now_utc)
    return PhaseChange(DONE, asked.why) if isinstance(asked, Nobody) else None


def _out_of_done(view: View, campaign: CampaignRow, rules: Phases) -> PhaseChange | None:
    results = _results(view, campaign)
    if not results or _gain(results[-1]) < _bar(rules):
        return None
    number = results[-1].number
    return PhaseChange(EXPLOIT, f"D{number} changed what there is to gain", (number,))


def said(view: View, campaign: CampaignRow) -> str:
    """What a stop for want of levers adds: the phase, and why it was entered."""
    last = _last(view, campaign)
    return "" if last is None else f"; {last.phase}: {last.why}"


def profiles(view: View, campaign: CampaignRow) -> tuple[ProfileRow, ...]:
    """The profiles of a campaign, oldest first."""
    mine = {p.number for p in view.phases if p.campaign_id == campaign.id}
    return tuple(p for p in view.profiles if p.phase in mine)


def _last(view: View, campaign: CampaignRow) -> PhaseRow | None:
    mine = [p for p in view.phases if p.campaign_id == campaign.id]
    return mine[-1] if mine else None


def _results(view: View, campaign: CampaignRow) -> Sequence[DecisionRow]:
    """What levers came to since the campaign entered its phase, oldest first."""
    last = _last(view, campaign)
    since = 0 if last is None else last.after_decision
    found = [v.decision for v in view.of_campaign(campaign.id) if tried(v)]
    return sorted(
        (d for d in found if d is not None and d.number > since), key=lambda d: d.number
    )


def _gain(decision: DecisionRow) -> float:
    """The log gain that a result brought; nothing unless it was promoted."""
    return (decision.mean or 0.0) if decision.promoted else 0.0


def _bar(rules: Phases) -> float:
    return log_gain(rules.poor_gain)
