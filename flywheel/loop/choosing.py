"""The lever that goes next: closed for its price, through a screen, or to its blocks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from flywheel.best import Best
from flywheel.box.clock import count
from flywheel.heads.judge import sees_nothing
from flywheel.ledger.rows import CampaignRow, VariantRow, View
from flywheel.lever import Lever, null_lever
from flywheel.loop.bracket import opened
from flywheel.loop.eligible import Candidate
from flywheel.loop.opening import another, first_of, variant_id
from flywheel.loop.ranking import Ranked, ranked
from flywheel.loop.step import Choice, Mate, NextBlock, PricedOut
from flywheel.statistics.band import Pool, gain_fraction, log_gain, pool
from flywheel.statistics.decide import bar_of, detectable
from flywheel.statistics.history import kind_of, series_of
from flywheel.statistics.screen import spread_known

# How many of the levers that a choice was made over are recorded with it.
RUNNERS_UP = 3


def lever_step(
    view: View,
    campaign: CampaignRow,
    best: Best,
    ready: Sequence[Candidate],
    first: Sequence[str],
    now_utc: str | None,
    blind: str | None,
) -> NextBlock | PricedOut:
    """What to do about the levers that may run: close one for its price, or open a block of one.

    `blind` says why no head could be judged, however good.
    """
    for candidate in ready:
        if (priced := _priced(view, campaign, best, candidate.lever, blind)) is not None:
            return priced
    # A family that is being screened goes first: the one that passed waits for all of them.
    begun = {v.lever.group for v in view.of_campaign(campaign.id) if v.waiting}
    order = sorted(ranked(view, ready, first), key=lambda one: not (
        {one.candidate.lever.name, one.candidate.lever.sweep} & {*first}
        or one.candidate.lever.group in begun
    ))
    step = None
    if not order[0].candidate.confirm:
        step = _screen_step(view, campaign, best, order)
    if step is None:
        step = first_of(view, campaign, best, order[0].candidate.lever, "lever", order[0].why)
    if step.purpose == "lever":
        step = replace(step, choice=_choice(order))
    return opened(view, step, now_utc)


def _choice(order: Sequence[Ranked]) -> Choice:
    """The first of the order, and what it was chosen over."""
    chosen, *others = order
    return Choice(
        chosen.priority.value,
        {**asdict(chosen.priority), "waiting": len(order)},
        tuple((o.candidate.lever.name, o.priority.value) for o in others[:RUNNERS_UP]),
    )


def _priced(
    view: View, campaign: CampaignRow, best: Best, lever: Lever, blind: str | None
) -> PricedOut | None:
    """A lever whose ceiling is too low to be worth a run, or to be seen here; None otherwise.

    `blind` says why no head could be judged, however good.
    """
    variant = variant_id(view)
    place = (lever, variant, dict(best.config), lever.applied(best.config, variant))
    if lever.kind == "head" and blind is not None:
        return PricedOut(*place, blind, "inconclusive", "unresolvable")
    if lever.ceiling is None:
        return None
    rule, past = campaign.settings.rule, _spread(view, campaign, lever, hot=lever.hot)
    said = f"its ceiling of {lever.ceiling * 100:.2g} % is under"
    bar = bar_of(rule, past)
    if log_gain(lever.ceiling) < bar:
        percent = gain_fraction(bar) * 100
        return PricedOut(*place, f"priced out: {said} the bar of {percent:.2g} %")
    n, alpha_t = rule.n_max, view.budget(campaign.id).alpha_t
    nu = past.nu + n - 1
    seen = detectable(n, past.variance * past.inflation, nu, alpha_t, bar) if past.nu else None
    if seen is None or lever.ceiling >= seen:
        return None
    said = f"unresolvable here: {said} the {seen * 100:.2g} % that {n} blocks could see"
    return PricedOut(*place, said, "inconclusive", "unresolvable")


def blind_to_heads(view: View, campaign: CampaignRow, prompts: int | None) -> str | None:
    """Why no head can be judged, however good: the prompts, its sample, are too few."""
    if prompts is None or not sees_nothing(prompts, view.budget(campaign.id).alpha_t):
        return None
    return f"unresolvable here: {count(prompts, 'prompt')} could see nothing of a head"


def _screen_step(
    view: View,
    campaign: CampaignRow,
    best: Best,
    order: Sequence[Ranked],
) -> NextBlock | None:
    """A screen that the first candidate is to go through; None when it goes straight on.

    A cold candidate is screened together with another one that is built and booted alike. A hot one
    is screened when levers that differ only in a number are to choose among themselves, or when
    more levers wait than there are tests left. A head is never: its trial is one load. Nor is what
    is lossy, which spends no test.
    """
    why, rest = order[0].why, [o.candidate.lever for o in order[1:] if not o.candidate.confirm]
    lever, mine = order[0].candidate.lever, view.of_campaign(campaign.id)
    if lever.kind == "head" or lever.lossy:
        return None
    family = [x for x in rest if x.group == lever.group]
    if lever.hot:
        begun = any(v.waiting and v.lever.group == lever.group for v in mine)
        scarce = len(order) > view.budget(campaign.id).left
        if not (family or begun or scarce or lever.sweep):
            return None
        if not spread_known(_spread(view, campaign, lever, hot=True)):
            return None
        step = first_of(view, campaign, best, lever, "lever", f"screen: {why}")
        return replace(step, screen=True)
    mates = [x for x in (*family, *rest) if not x.hot and x.boot == lever.boot]
    if not mates:
        return None
    nulls = [v for v in mine if v.purpose == "null" and not v.blocks[0].hot]
    known = spread_known(_spread(view, campaign, lever, hot=False))
    if not known or sum(len(v.measured) for v in nulls) < campaign.settings.cold_calibration:
        return calibrate(view, campaign, nulls, best, hot=False)
    step = first_of(view, campaign, best, lever, "lever", f"screen, with {mates[0].name}: {why}")
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


def calibrate(
    view: View,
    campaign: CampaignRow,
    nulls: Sequence[VariantRow],
    best: Best,
    *,
    hot: bool = True,
) -> NextBlock:
    """One more block of the incumbent against itself."""
    done, settings = sum(len(v.measured) for v in nulls), campaign.settings
    wanted = settings.calibration if hot else settings.cold_calibration
    why = f"null {done + 1} of {wanted}: the spread that a lever must beat"
    if nulls:
        return another(view, campaign, nulls[-1], why)
    return first_of(view, campaign, best, null_lever(), "null", why, hot=hot)
