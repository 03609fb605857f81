"""What a campaign came to, and what many campaigns say together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from flywheel.statistics.campaign import clopper_pearson

REAL = 0.01


@dataclass(frozen=True, slots=True)
class Outcome:
    """One campaign: every lever's true log gain, and what the promoted ones were said to gain.

    `claims` maps the place of a promoted lever to its claimed log gain. `tests` counts
    confirmations, `canaries` the null levers of known truth, `wrong_canaries` those promoted.
    """

    truth: tuple[float, ...]
    claims: dict[int, float]
    loads: int
    tests: int = 0
    canaries: int = 0
    wrong_canaries: int = 0

    @property
    def false(self) -> int:
        """Promotions of what gains nothing, canaries included."""
        return sum(self.truth[i] <= 0 for i in self.claims) + self.wrong_canaries

    @property
    def worthless(self) -> int:
        """Levers that gain nothing, canaries included."""
        return sum(gain <= 0 for gain in self.truth) + self.canaries


@dataclass(frozen=True, slots=True)
class Summary:
    """Many campaigns under one rule on one box.

    `false` is the mean number of false promotions a campaign, with the exact 95 % interval of its
    rate in `false_low`, `false_high`; `any_false` the share of campaigns with at least one, up to
    `any_false_high`; `power` the share of levers truly worth over 1 % that were promoted. Gains
    are sums of log gains, `fdr` is the mean share of false among promotions.
    """

    rule: str
    box: str
    truth: str
    campaigns: int
    loads_per_lever: float
    promoted: float
    false: float
    false_low: float
    false_high: float
    any_false: float
    any_false_high: float
    fdr: float
    power: float | None
    power_low: float | None
    power_high: float | None
    true_gain: float
    claimed_gain: float
    tests: float

    def as_dict(self) -> dict[str, object]:
        """Plain JSON."""
        return asdict(self)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Summary:
        """A row that `as_dict` wrote; ValueError or TypeError for anything else."""
        found = cls(**row)
        for name, value in asdict(found).items():
            if name in ("rule", "box", "truth"):
                if not isinstance(value, str):
                    raise ValueError(f"{name} must be text")
            elif not _is_figure(value) and not (value is None and name.startswith("power")):
                raise ValueError(f"{name} must be a finite number")
        if found.truth not in ("mixed", "null") and not 0 < _number(found.truth) < 1:
            raise ValueError(f"{found.truth!r} is no kind of truth")
        return found


def _is_figure(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def summarise(rule: str, box: str, truth: str, outcomes: Sequence[Outcome]) -> Summary:
    """Add campaigns up. Each has at least one lever."""
    n = len(outcomes)
    false = sum(o.false for o in outcomes)
    worthless = sum(o.worthless for o in outcomes)
    low, high = clopper_pearson(min(false, worthless), worthless)
    spoilt = sum(o.false > 0 for o in outcomes)
    bar = REAL if truth in ("mixed", "null") else 0.0
    real = [(i in o.claims) for o in outcomes for i, g in enumerate(o.truth) if g > bar]
    power = clopper_pearson(sum(real), len(real)) if real else (None, None)
    return Summary(
        rule=rule, box=box, truth=truth, campaigns=n,
        loads_per_lever=fmean(o.loads / len(o.truth) for o in outcomes),
        promoted=fmean(len(o.claims) for o in outcomes),
        false=false / n,
        false_low=low * worthless / n,
        false_high=high * worthless / n,
        any_false=spoilt / n,
        any_false_high=clopper_pearson(spoilt, n)[1],
        fdr=fmean(o.false / max(1, len(o.claims) + o.wrong_canaries) for o in outcomes),
        power=fmean(real) if real else None, power_low=power[0], power_high=power[1],
        true_gain=fmean(math.fsum(o.truth[i] for i in o.claims) for o in outcomes),
        claimed_gain=fmean(math.fsum(o.claims.values()) for o in outcomes),
        tests=fmean(o.tests for o in outcomes),
    )
