"""The first lines of the report: title, canaries, incumbent, gain, cost. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from flywheel import best as best_of
from flywheel.best import Best
from flywheel.box.clock import count
from flywheel.heads.ladder import Rung, ladder, percent
from flywheel.ledger.rows import HeadRow, RunRow, View
from flywheel.report.detail import best_runs, detail
from flywheel.report.document import Cost, Figure
from flywheel.report.scope import Scope
from flywheel.report.trace import bounded_exp, newest_timed, of_synthetic, spread_between
from flywheel.report.words import ends, minutes, ms, seconds_between, stamp
from flywheel.run.measurement import Measurement
from flywheel.statistics.band import Band, gain_fraction, null_bias
from flywheel.statistics.campaign import Canaries
from flywheel.statistics.decide import two_digits

PROVISIONAL_LOADS, PROVISIONAL_SESSIONS = 3, 2


def title(scope: Scope, cost: Cost) -> str:
    """When, how long, where, and under which ruler."""
    campaign = scope.campaign
    parts = [f"campaign {campaign.id} ({campaign.settings.label})"]
    if scope.since_utc is not None:
        parts = [f"since {stamp(scope.since_utc)} UTC"]
    if runs := scope.runs():
        first, _ = _span(scope, runs)
        parts += [f"from {stamp(first)} UTC", minutes(cost.wall_s)]
    parts.append(f"box {campaign.box}")
    newest = newest_timed(scope.view)
    if newest is not None and newest.ruler_id is not None:
        parts.append(f"ruler {scope.view.rulers[newest.ruler_id].label}")
    if cost.engine_share is not None:
        parts.append(f"{cost.engine_share * 100:.1f} % of the time in engine runs")
    return " · ".join(parts)


def _span(scope: Scope, runs: Sequence[RunRow]) -> tuple[str, str]:
    """The first start and the last end; a head is trained before its first load starts."""
    starts = [r.started_utc for r in runs]
    if _heads(scope) and scope.since_utc is None:
        starts.append(scope.campaign.created_utc)
    return min(starts), max(r.ended_utc for r in runs)


def _heads(scope: Scope) -> list[HeadRow]:
    """Heads that were archived for the levers of the period."""
    mine, since = {v.id for v in scope.variants()}, scope.since_utc
    return [h for h in scope.view.heads
            if h.variant_id in mine and (since is None or h.created_utc >= since)]  # fmt: skip


def canaries(scope: Scope) -> Figure:
    """How many null levers were promoted, and the spread that they had to stay within."""
    mine = [v for v in scope.variants() if v.purpose == "canary"]
    decided = [d for v in mine if (d := scope.decided(v)) is not None and d.ending != "void"]
    found = Canaries(sum(d.promoted for d in decided), len(decided))
    total = scope.view.canaries()
    text = f"{found.promoted} of {found.decided} promoted"
    if total.decided > found.decided:
        text += f" ({total.promoted} of {total.decided} ever)"
    runs = tuple(r.id for v in mine for b in scope.blocks(v) for r in b.runs)
    share = found.promoted / found.decided if found.decided else None
    return Figure(text + _spread(scope), share, 0.0, total.upper, runs)


def _spread(scope: Scope) -> str:
    """Of null levers where there are any: a lever may be unsteady without the box being so."""
    measured = [(v, b) for v in scope.variants() for b in scope.blocks(v) if b.estimate]
    nulls = [b for v, b in measured if v.null]
    newest = nulls[-1] if nulls else newest_timed(scope.view)
    if newest is None or newest.estimate is None:
        return ""
    looked_at = nulls or [b for _, b in measured]
    within = _rms([b.estimate.within_sd for b in looked_at if b.estimate])
    between = spread_between(scope.view, newest)
    # A period without a block has no spread of its own to tell of.
    parts = [f"{two_digits(within)} within a load"] if looked_at else []
    parts += [] if between is None else [f"{two_digits(between)} between loads"]
    bias = null_bias([b.estimate.effect for b in nulls if b.estimate and b.estimate.hot])
    raised = f" · nulls are off zero by {two_digits(bias)}, as is the bar" if bias else ""
    return (f" · spread {', '.join(parts)}" if parts else "") + raised


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(math.fsum(v * v for v in values) / len(values)) if values else 0.0


def incumbent(
    view: View, best: Best, measured: Mapping[str, Sequence[Measurement]]
) -> Figure:
    """Where the next load of the best configuration should fall."""
    newest = newest_timed(view)
    found = None
    if newest is not None and newest.ruler_id is not None:
        found = best_of.level(view, best.config, newest.ruler_id)
    if found is None:
        head = _head(view, best)
        words = "not measured yet" if head is None else f"tau {head.tau:.3f} with {head.name}"
        return Figure(words)
    band, sessions = found
    kind = " of plain decode, synthetic weights" if of_synthetic(view, newest) else ""
    middle = math.exp(min(band.mean, 700.0))
    low, high = bounded_exp(band.low), bounded_exp(band.high)
    open_ended = low is None or high is None
    words = "[?]" if low is None or high is None else f"[{ms(low)}, {ms(high)}]"
    parts = [f"{ms(middle)} ms/token{kind} {words}", f"{1e3 / middle:.4g} tok/s"]
    runs = best_runs(view, best)
    known = detail(runs, measured) if measured else None
    if known is not None and known.tau is not None:
        parts.append(f"tau {known.tau:.2f} of {known.width + 1} at width {known.width}")
    parts.append(count(band.n, "load"))
    if band.n < PROVISIONAL_LOADS or sessions < PROVISIONAL_SESSIONS:
        parts.append("provisional")
    return Figure(" · ".join(parts), middle, low, high, tuple(r for r, _ in runs), open_ended)


def gain(view: View, best: Best) -> Figure:
    """The best against the frozen first configuration, measured and never summed."""
    if not best.promotions:
        return Figure("nothing promoted: the best is the first configuration", 0.0)
    found = best_of.headline(view, best)
    against = "against the frozen first configuration"
    if found is None:
        head = _head(view, best) if len(best.promotions) == 1 else None
        if head is None:
            return Figure(f"not yet measured {against}")
        return Figure(f"tau {percent(head.gain)} a prompt {against}")
    band, blocks = found
    runs = tuple(r.id for b in blocks for r in b.runs)
    when = max(r.ended_utc for b in blocks for r in b.runs)[11:16]
    mean, low, high = fractions(band)
    text = (
        f"{mean * 100:.1f} % {ends(low, high)} {against}, "
        f"measured again at {when} UTC, {count(band.n, 'block')}"
    )
    return Figure(text, mean, low, high, runs, low is None or high is None)


def _head(view: View, best: Best) -> Rung | None:
    """The head of the best configuration, where it was measured."""
    return next((r for r in ladder(view) if r.name == best.config.get("head")), None)


def fractions(band: Band) -> tuple[float, float | None, float | None]:
    """A band of log gains as fractions of time; None for an end that nothing bounds."""
    low = gain_fraction(band.low) if math.isfinite(band.low) else None
    high = gain_fraction(band.high) if math.isfinite(band.high) else None
    return gain_fraction(band.mean), low, high


def cost(scope: Scope) -> Cost:
    """What the period cost, and what each decided lever took of it."""
    runs = scope.runs()
    heads = _heads(scope)
    dead = [r for r in runs if r.outcome != "ok"]
    decided = sum(
        not v.null and d.ending != "void" and bool(v.blocks or v.screened)
        for v, d in scope.decisions()
    )
    energy = [e for r in runs if (e := _energy_j(r.evidence))]
    found = Cost(
        text="",
        wall_s=seconds_between(*_span(scope, runs)) if runs else 0.0,
        engine_s=math.fsum(r.wall_s for r in runs),
        loads=len(runs),
        void_loads=len(dead),
        void_s=math.fsum(r.wall_s for r in dead),
        decided=decided,
        per_decided=len(runs) / decided if decided else None,
        energy_j=math.fsum(j for e in energy for j in e.values()) if energy else None,
        heads=len(heads),
        trained_s=math.fsum(h.card.get("training", {}).get("seconds", 0.0) for h in heads),
    )
    return Cost(_cost_text(found, energy), *(getattr(found, n) for n in found.__slots__[1:]))


def _cost_text(cost: Cost, energy: Sequence[Mapping[str, float]]) -> str:
    parts = [minutes(cost.wall_s) + " of wall time"]
    if cost.engine_share is not None:
        parts.append(f"{cost.engine_share * 100:.1f} % of it in the engine")
    parts.append(count(cost.loads, "load"))
    if cost.void_loads:
        parts[-1] += f", {cost.void_loads} void ({minutes(cost.void_s)})"
    if cost.per_decided is not None:
        parts.append(f"{cost.per_decided:.1f} a decided lever")
    if cost.heads:
        parts.append(f"{count(cost.heads, 'head')} of {minutes(cost.trained_s)} of training")
    if cost.energy_j is not None:
        takers = " and ".join(sorted({name.upper() for e in energy for name in e}))
        some = "" if len(energy) == cost.loads else f" in {count(len(energy), 'load')}"
        parts.append(f"{cost.energy_j / 3.6e6:.3g} kWh of the {takers}{some}")
    return " · ".join(parts)


def _energy_j(evidence: Mapping[str, Any]) -> dict[str, float]:
    """Joules of one run by what took them; empty where the box told none."""
    told = evidence.get("energy_j")
    if not isinstance(told, dict):
        return {}
    return {
        name: float(value) for name, value in told.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    }  # fmt: skip
