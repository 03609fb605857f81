"""A view of the ledger in, the report's document out. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime

from flywheel import best as best_of
from flywheel.band import Band, gain_fraction, pool
from flywheel.best import Best
from flywheel.history import series
from flywheel.ledger.rows import BlockRow, DecisionRow, RunRow, VariantRow, View
from flywheel.lever import canonical
from flywheel.measurement import Measurement
from flywheel.report.detail import detail
from flywheel.report.document import (
    Document,
    Figure,
    FindingLine,
    Row,
    RunLine,
    Step,
    VoidRow,
)

PROVISIONAL_LOADS, PROVISIONAL_SESSIONS = 3, 2


def build(
    view: View,
    *,
    next_step: str,
    measured: Mapping[str, Sequence[Measurement]] | None = None,
    notes: Sequence[str] = (),
) -> Document:
    """The report on the newest campaign. Raises LedgerError when there is none.

    `measured` holds the measurements of the runs that `best_runs` names; without them the document
    has no detail part. `next_step` is the plan's word.
    """
    best = best_of.fold(view)
    campaign = view.campaign
    assert campaign is not None
    mine = view.of_campaign(campaign.id)
    budget = view.budget(campaign.id)
    return Document(
        title=_title(view, mine),
        canaries=_canaries(view, mine),
        incumbent=_incumbent(view, best, measured or {}),
        gain=_gain(view, best),
        budget=(
            f"{budget.tests} of {campaign.settings.budget} tests spent at alpha "
            f"{campaign.settings.alpha:g}; the next needs E >= "
            + (f"{1 / budget.alpha_t:.3g}" if budget.alpha_t else "infinity")
        ),
        rows=tuple(
            _row(view, v, v.decision) for v in _in_order(mine) if v.decision is not None
        ),
        voids=tuple(
            _void(v, b) for v in mine for b in v.blocks if b.void_code is not None
        ),
        findings=tuple(
            FindingLine(f.number, f.created_utc[:10], f.sentence, tuple(f.evidence["runs"]))
            for f in view.findings
            if f.variant_id in {v.id for v in mine}
        ),
        next=next_step,
        config=dict(best.config),
        first_config=dict(best.first_config),
        timeline=_timeline(view, best),
        detail=detail(best_runs(view, best), measured) if measured else None,
        runs=tuple(_run(v, b, r) for v in mine for b in v.blocks for r in b.runs),
        notes=tuple(notes),
    )


def best_runs(view: View, best: Best) -> tuple[tuple[str, str], ...]:
    """(run, arm) of every load of the best configuration under the newest ruler, newest first."""
    wanted, found = canonical(dict(best.config)), []
    newest = _newest(view)
    for variant in view.variants:
        arms = [a for a, c in (("A", variant.incumbent), ("B", variant.candidate))
                if canonical(dict(c)) == wanted]
        # The two arms of a null are one load of one configuration.
        for block in variant.measured if arms else ():
            if newest is not None and block.ruler_id == newest.ruler_id:
                found += [(block.serial, r.id, arms[0]) for r in block.runs
                          if block.hot or block.pattern[r.slot] == arms[0]]
    return tuple((run, arm) for _, run, arm in sorted(found, reverse=True))


def _newest(view: View) -> BlockRow | None:
    """The newest block that timed tokens; rulers of tau have no milliseconds."""
    timed = (b for b in reversed(view.blocks()) if b.estimate and b.estimate.metric != "tau")
    return next(timed, None)


def _in_order(variants: Sequence[VariantRow]) -> list[VariantRow]:
    return sorted(variants, key=lambda v: (v.decision.number if v.decision else 0, v.id))


def _title(view: View, mine: Sequence[VariantRow]) -> str:
    campaign = view.campaign
    assert campaign is not None
    runs = [r for v in mine for b in v.blocks for r in b.runs if r.outcome is not None]
    parts = [f"campaign {campaign.id} ({campaign.settings.label})"]
    if runs:
        first, last = min(r.started_utc for r in runs), max(r.ended_utc for r in runs)
        took = _seconds(first, last)
        parts += [f"from {first[:16].replace('T', ' ')} UTC", _duration(took)]
    parts.append(f"box {campaign.box}")
    newest = _newest(view)
    if newest is not None and newest.ruler_id is not None:
        parts.append(f"ruler {view.rulers[newest.ruler_id].label}")
    if runs and took > 0:
        share = min(1.0, math.fsum(r.wall_s for r in runs) / took)
        parts.append(f"{share * 100:.1f} % of the time in engine runs")
    return " · ".join(parts)


def _seconds(first: str, last: str) -> float:
    return (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds()


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def _canaries(view: View, mine: Sequence[VariantRow]) -> Figure:
    campaign = view.campaign
    assert campaign is not None
    count = view.canaries(campaign.id)
    total = view.canaries()
    text = f"{count.promoted} of {count.decided} promoted"
    if total.decided > count.decided:
        text += f" ({total.promoted} of {total.decided} ever)"
    nulls = [b for v in mine if v.null for b in v.measured]
    newest = nulls[-1] if nulls else _newest(view)
    if newest is not None and newest.estimate is not None:
        within = _rms([e.within_sd for v in mine for e in v.estimates])
        between = pool(series(view, newest)).sd
        text += f" · spread {within * 100:.2g} % within a load, {between * 100:.2g} % between loads"
    runs = tuple(r.id for v in mine if v.purpose == "canary" for b in v.blocks for r in b.runs)
    return Figure(text, count.promoted / count.decided if count.decided else None, 0.0,
                  total.upper, runs)


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(math.fsum(v * v for v in values) / len(values)) if values else 0.0


def _incumbent(
    view: View, best: Best, measured: Mapping[str, Sequence[Measurement]]
) -> Figure:
    newest = _newest(view)
    found = None
    if newest is not None and newest.ruler_id is not None:
        found = best_of.level(view, best.config, newest.ruler_id)
    if found is None:
        return Figure("not measured yet")
    band, sessions = found
    ms, low, high = (math.exp(min(x, 700.0)) for x in (band.mean, band.low, band.high))
    ends = f"[{low:.3g}, {high:.3g}]" if math.isfinite(band.low) else "[?]"
    parts = [f"{ms:.3g} ms/token {ends}", f"{1e3 / ms:.4g} tok/s"]
    runs = best_runs(view, best)
    known = detail(runs, measured) if measured else None
    if known is not None and known.tau is not None:
        parts.append(f"tau {known.tau:.2f} of {known.width + 1} at width {known.width}")
    parts.append(f"{band.n} loads")
    if band.n < PROVISIONAL_LOADS or sessions < PROVISIONAL_SESSIONS:
        parts.append("provisional")
    return Figure(" · ".join(parts), ms, low, high, tuple(r for r, _ in runs))


def _gain(view: View, best: Best) -> Figure:
    if not best.promotions:
        return Figure("nothing promoted: the best is the first configuration", 0.0)
    found = best_of.headline(view, best)
    if found is None:
        return Figure("not yet measured against the frozen first configuration")
    band, blocks = found
    runs = tuple(r.id for b in blocks for r in b.runs)
    when = max(r.ended_utc for b in blocks for r in b.runs)[11:16]
    mean, low, high = _fractions(band)
    text = (
        f"{mean * 100:.1f} % {_ends(low, high)} against the frozen first configuration, "
        f"measured again at {when} UTC, {_count(band.n, 'block')}"
    )
    return Figure(text, mean, low, high, runs)


def _fractions(band: Band) -> tuple[float, float | None, float | None]:
    low = gain_fraction(band.low) if math.isfinite(band.low) else None
    high = gain_fraction(band.high) if math.isfinite(band.high) else None
    return gain_fraction(band.mean), low, high


def _ends(low: float | None, high: float | None) -> str:
    texts = ("?" if x is None else f"{x * 100:.1f}" for x in (low, high))
    return f"[{', '.join(texts)}]"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _row(view: View, variant: VariantRow, decision: DecisionRow) -> Row:
    mean = low = high = None
    if decision.band is not None:
        mean, low, high = _fractions(decision.band)
    findings = tuple(f.number for f in view.findings if f.decision == decision.number)
    return Row(
        decision=decision.number,
        findings=findings,
        label=_label(variant),
        name=variant.lever.name,
        ending=decision.ending,
        code=decision.code,
        said=_said(decision, mean, low, high),
        mean=mean,
        low=low,
        high=high,
        blocks=decision.n,
        predicted=variant.predicted_gain,
        runs=tuple(r.id for b in variant.blocks for r in b.runs),
        superseded_by=decision.superseded_by,
        null=variant.null,
    )


def _label(variant: VariantRow) -> str:
    if variant.null:
        return f"{variant.purpose} {variant.id}"
    field_name = variant.lever.field_name
    if field_name is None:
        return variant.purpose
    # A field that the incumbent leaves to the engine has no value to show.
    old = variant.incumbent.get(field_name)
    shown = f"{old if isinstance(old, str) else canonical(old)} " if old is not None else ""
    return f"{field_name} {shown}{variant.lever.label().removeprefix(field_name).lstrip()}"


def _said(
    decision: DecisionRow, mean: float | None, low: float | None, high: float | None
) -> str:
    """The figure that the row is about, in the words of its ending."""
    if decision.ending == "promoted" and mean is not None:
        ends = ["?" if x is None else f"{-x * 100:+.1f}" for x in (high, low)]
        return f"{-mean * 100:+.1f} % time [{', '.join(ends)}]"
    if decision.ending == "rejected" and decision.code not in ("priced_out", "regression"):
        return "not bounded" if high is None else f"less than {high * 100:.1f} %"
    return decision.sentence.replace("regression in", "REGRESSION in")


def _void(variant: VariantRow, block: BlockRow) -> VoidRow:
    later = [b for b in variant.blocks if b.number > block.number]
    if any(b.estimate is not None for b in later):
        after = "retried, ok"
    elif variant.decision is not None:
        after = variant.decision.ending if variant.decision.ending != "void" else "deferred"
    else:
        after = "to be retried"
    return VoidRow(
        block.id, _label(variant), str(block.void_code), block.void_detail, after,
        tuple(r.id for r in block.runs),
    )


def _timeline(view: View, best: Best) -> tuple[Step, ...]:
    steps, total = [], 0.0
    for variant in _in_order(view.variants):
        decision = variant.decision
        if decision is not None and decision.number in best.promotions:
            total += decision.mean or 0.0
            steps.append(
                Step(decision.number, _label(variant), decision.created_utc[:16], total)
            )
    return tuple(steps)


def _run(variant: VariantRow, block: BlockRow, run: RunRow) -> RunLine:
    return RunLine(
        run.id, block.id, variant.id, variant.purpose, run.outcome or "running", run.code,
        run.wall_s, f"runs/{run.id}/run.log", run.log_sha256 or "",
        f"python -m engine.measure --config runs/{run.id}/config.json --log again.log",
    )
