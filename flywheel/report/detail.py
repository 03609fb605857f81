"""The best configuration in detail, from the measurements of its own runs. Pure data.

Ratios are pooled (sum over sum, never a mean of ratios); plain and speculative decode come from
the same runs, so the speedup is computed, not copied.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from flywheel.best import Best
from flywheel.ledger.rows import View
from flywheel.lever import canonical
from flywheel.report.trace import newest_timed
from flywheel.run.measurement import Measurement

# Enough loads to pool; more would only repeat what the band already says.
NEWEST = 12


@dataclass(frozen=True, slots=True)
class Category:
    """One category of prompts; `tau` and times are pooled over its counted prompts."""

    name: str
    prompts: int
    tau: float | None
    ms_per_token: float
    plain_ms_per_token: float | None

    @property
    def speedup(self) -> float | None:
        """Plain time over speculative time, of the same runs."""
        if self.plain_ms_per_token is None:
            return None
        return self.plain_ms_per_token / self.ms_per_token


@dataclass(frozen=True, slots=True)
class Detail:
    """`accepted` by draft position (1, 2, ...), `step_cost_ms` by width, `runs` with log lines."""

    categories: tuple[Category, ...]
    total: Category
    width: int
    accepted: tuple[tuple[int, float], ...]
    step_cost_ms: tuple[tuple[int, float], ...]
    prefill_tok_s: float | None
    ttft_ms: float | None
    peak_bytes: int | None
    runs: tuple[tuple[str, str], ...]

    @property
    def tau(self) -> float | None:
        """Pooled over all counted prompts."""
        return self.total.tau


def best_runs(view: View, best: Best) -> tuple[tuple[str, str], ...]:
    """(run, arm) of every load of the best configuration under the newest ruler, newest first."""
    wanted, found = canonical(dict(best.config)), []
    newest = newest_timed(view)
    for variant in view.variants:
        arms = [a for a, c in (("A", variant.incumbent), ("B", variant.candidate))
                if canonical(dict(c)) == wanted]
        # The two arms of a null are one load of one configuration.
        for block in variant.measured if arms else ():
            if newest is not None and block.ruler_id == newest.ruler_id:
                found += [(block.serial, r.id, arms[0]) for r in block.runs
                          if block.hot or block.pattern[r.slot] == arms[0]]
    return tuple((run, arm) for _, run, arm in sorted(found, reverse=True))


def detail(
    runs: Sequence[tuple[str, str]], measured: Mapping[str, Sequence[Measurement]]
) -> Detail | None:
    """The detail of one configuration from its (run, arm) pairs; None when nothing was counted."""
    rows: list[Measurement] = []
    whole: list[Measurement] = []
    sources = []
    for run, arm in runs[:NEWEST]:
        if run not in measured:
            continue
        mine = [m for m in measured[run] if m.arm == arm and m.counted]
        rows += mine
        whole += [m for m in measured[run] if m.arm == ""]
        lines = [m.line for m in mine if m.line]
        sources.append((run, f"lines {min(lines)}-{max(lines)}" if lines else ""))
    by_metric: dict[str, list[Measurement]] = defaultdict(list)
    for row in rows:
        by_metric[row.metric].append(row)
    if not by_metric["time"]:
        return None
    names = sorted({m.category for m in by_metric["time"]})
    prefill, ttft = by_metric["prefill"], by_metric["ttft"]
    peaks = [m.numerator for m in whole if m.metric == "peak_rss"]
    accepted = _by_place(by_metric["accepted"])
    return Detail(
        categories=tuple(_category(name, by_metric, name) for name in names),
        total=_category("all", by_metric, None),
        width=max((place for place, _ in accepted), default=0),
        accepted=accepted,
        step_cost_ms=tuple(
            (width, median(m.value for m in by_metric["step_cost"] if m.repeat == width) / 1e6)
            for width in sorted({m.repeat for m in by_metric["step_cost"]})
        ),
        prefill_tok_s=1e9 / _pooled(prefill) if prefill else None,
        ttft_ms=median(m.value for m in ttft) / 1e6 if ttft else None,
        peak_bytes=max(peaks) if peaks else None,
        runs=tuple(sources),
    )


def _category(
    name: str, by_metric: Mapping[str, Sequence[Measurement]], only: str | None
) -> Category:
    def of(metric: str) -> list[Measurement]:
        return [m for m in by_metric.get(metric, ()) if only in (None, m.category)]

    plain, tau = of("plain_time"), of("tau")
    return Category(
        name=name,
        prompts=len({m.prompt for m in of("time")}),
        tau=_pooled(tau) if tau else None,
        ms_per_token=_pooled(of("time")) / 1e6,
        plain_ms_per_token=_pooled(plain) / 1e6 if plain else None,
    )


def _pooled(rows: Sequence[Measurement]) -> float:
    return sum(m.numerator for m in rows) / sum(m.denominator for m in rows)


def _by_place(rows: Sequence[Measurement]) -> tuple[tuple[int, float], ...]:
    return tuple(
        (place, _pooled([m for m in rows if m.repeat == place]))
        for place in sorted({m.repeat for m in rows})
    )
