"""Is an old promotion still worth having? Its reverse, as a lever like any other. Pure.

Gains do not add: what a later promotion brings may be what an earlier one brought. The reverse of a
promotion is measured against the best that has grown on top of it. If the reverse is promoted, the
old win is undone; if it is rejected, the old win is confirmed with a band. Either way it probes for
interaction: a win that is worth another amount than when it was won owes that to the later ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flywheel.best import Best, engine_part
from flywheel.ledger.rows import VariantRow, View
from flywheel.lever import Lever, canonical
from flywheel.statistics.band import Band
from flywheel.statistics.decide import percent, span

# Promotions on top of one before it is looked at again.
AFTER = 3
FAMILY = "ablation"


def ablation(
    view: View, best: Best, effective: Mapping[str, Mapping[str, Any]], after: int = AFTER
) -> Lever | None:
    """The reverse of the oldest promotion that is due to be looked at again; None when none is.

    `effective` maps requested configurations to what the engine made of them, so that a promotion
    over a default can be taken back too.
    """
    promoted = {v.decision.number: v for v in view.variants if v.decision is not None}
    for number in best.promotions:
        if (lever := _reverse(promoted[number], best, effective)) is None:
            continue
        since = max((number, *_looks(view, lever, promoted[number])))
        if sum(later > since for later in best.promotions) >= after:
            return lever
    return None


def interaction(view: View, variant: VariantRow, band: Band | None) -> str | None:
    """What the reverse of a promotion says of its interaction with later ones; None: nothing.

    `band` is that of the reverse's log gain. Two bands that do not meet are two different gains.
    """
    name = variant.lever.field_name
    if variant.lever.family != FAMILY or name is None or band is None:
        return None
    won = [v for v in view.variants if v.decision is not None and v.decision.promoted
           and v.lever.field_name == name
           and v.candidate.get(name) == variant.incumbent.get(name)]
    then = won[-1].decision.band if won and won[-1].decision else None
    if then is None or (then.low <= -band.low and -band.high <= then.high):
        return None
    made = won[-1].decision
    assert made is not None
    later = ", ".join(
        f"D{d.number}" for d in view.standing()
        if d.promoted and not d.null and made.number < d.number <= (variant.from_decision or 0)
    )
    return (
        f"{won[-1].lever.label()} interacts with {later}: it saved {percent(then.mean)} "
        f"[{span(then)}] when it was won, and {percent(-band.mean)} "
        f"[{span(Band(-band.mean, -band.high, -band.low, band.n, band.nu))}] on top of them"
    )


def _reverse(
    variant: VariantRow, best: Best, effective: Mapping[str, Mapping[str, Any]]
) -> Lever | None:
    """The lever that takes a promotion back; None if it no longer stands or cannot be undone."""
    lever, decision = variant.lever, variant.decision
    name = lever.field_name
    assert decision is not None
    if lever.kind != "config" or name is None or best.config.get(name) != lever.change[name]:
        return None
    before = {**effective.get(canonical(engine_part(variant.incumbent)), {}), **variant.incumbent}
    if name not in before:
        return None
    return Lever(
        name=f"without.{lever.name}",
        kind="config",
        change={name: before[name]},
        claim=f"what D{decision.number} gained is no longer there",
        falsify="time per token does not fall without it",
        predicted_gain=0.0,
        hot=lever.hot,
        family=FAMILY,
        metric=lever.metric,
        slow=lever.slow,
    )


def _looks(view: View, reverse: Lever, promoted: VariantRow) -> list[int]:
    """The newest promotion below each earlier look at this very reverse."""
    name = reverse.field_name
    assert name is not None
    return [
        v.from_decision
        for v in view.variants
        if v.lever.identity == reverse.identity
        and v.from_decision is not None
        and v.incumbent.get(name) == promoted.lever.change[name]
    ]
