"""Bands: how sure the blocks are. Pure; scipy's special functions only.

The sample is a block. Its variance is learnt from every block ever run under the same ruler, kind
and metric, one square per degree of freedom, and inflated by what the canaries show. Formulas are
those of Student's t, its one-sided e-process, and the band that this e-process inverts to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from scipy.special import fdtr, stdtr, stdtrit

from flywheel.errors import StatisticsError

PRIOR_SCALE = 4.0
HALF_LIFE = 60.0
NU_CAP = 30.0
# Median of chi-squared with one degree of freedom.
CHI2_MEDIAN = 0.455
CAP = 12.0
CANARY_WEIGHT = 8.0
# A null that misses zero this clearly shows the box or the method, not luck.
NULL_ALARM = 5e-3


@dataclass(frozen=True, slots=True)
class Band:
    """An interval on the log scale; `nu` degrees of freedom, `n` blocks or loads."""

    mean: float
    low: float
    high: float
    n: int
    nu: float

    @property
    def half(self) -> float:
        """Half its width."""
        return (self.high - self.low) / 2


@dataclass(frozen=True, slots=True)
class Series:
    """The effects of one variant, in the order measured.

    `first` is the serial number of its first block within the pool's history (recency), `contrasts`
    the cold blocks' treatment-free contrasts, `null` that the true effect is known to be 0.
    """

    effects: tuple[float, ...]
    first: int = 0
    contrasts: tuple[float, ...] = ()
    null: bool = False


@dataclass(frozen=True, slots=True)
class Pool:
    """What past blocks say about the variance of the next one.

    `variance` has `nu` degrees of freedom; `inflation` >= 1 comes from `nulls` null blocks.
    `bias` is the log effect by which these are off zero beyond doubt: no number of blocks averages
    it away, so a gain has to exceed it.
    """

    variance: float
    nu: float
    inflation: float = 1.0
    nulls: int = 0
    bias: float = 0.0

    @property
    def sd(self) -> float:
        """The sd of one block's effect that decisions use."""
        return math.sqrt(self.variance * self.inflation)


@dataclass(frozen=True, slots=True)
class Spread:
    """The variance that one lever's decision uses: pooled with its own, or its own if unstable."""

    variance: float
    nu: float
    unstable: bool


def residuals(effects: Sequence[float]) -> tuple[float, ...]:
    """Helmert residuals: n - 1 independent numbers with the variance of one effect and mean 0.

    Their squares sum to the sum of squares about the mean, whatever the true effect is.
    """
    out, total = [], 0.0
    for k, effect in enumerate(effects):
        if k:
            out.append((effect - total / k) * math.sqrt(k / (k + 1)))
        total += effect
    return tuple(out)


def pool(history: Iterable[Series]) -> Pool:
    """Learn the between-load variance from past variants, nulls and contrasts.

    Squares are weighted by recency (half-life 60 blocks), capped at 12 times the scaled median, and
    worth at most 30 degrees of freedom together. Returns nu = 0 when nothing was ever measured.
    Sums are exactly rounded, so the order in which the history is listed changes no bit.
    """
    squares: list[tuple[int, float]] = []
    null_effects: list[float] = []
    for series in history:
        squares += _squares(series)
        if series.null:
            null_effects += series.effects
    if not squares:
        return Pool(0.0, 0.0)
    cap = CAP * _median([s for _, s in squares]) / CHI2_MEDIAN
    newest = max(at for at, _ in squares)
    weights = [_weight(newest - at) for at, _ in squares]
    total = math.fsum(weights)
    learnt = math.fsum(
        w * (s if s < cap or cap <= 0 else cap) for w, (_, s) in zip(weights, squares, strict=True)
    )
    variance = learnt / total
    nulls = len(null_effects)
    inflation = 1.0
    if variance > 0 and nulls:
        excess = math.fsum(e * e for e in null_effects) / variance
        inflation = max(1.0, (excess + CANARY_WEIGHT) / (nulls + CANARY_WEIGHT))
    return Pool(variance, min(NU_CAP, total), inflation, nulls, null_bias(null_effects))


def null_bias(effects: Sequence[float]) -> float:
    """Size of the mean of null `effects` where it differs from zero (two-sided t), else 0.

    The spread is that about their own mean: squares about zero would hide the very bias.
    """
    n = len(effects)
    mean = math.fsum(effects) / max(n, 1)
    own = math.fsum((e - mean) ** 2 for e in effects)
    if n < 2 or own <= 0:
        return 0.0
    t = abs(mean) * math.sqrt(n * (n - 1) / own)
    return abs(mean) if 2 * float(stdtr(n - 1, -t)) < NULL_ALARM else 0.0


@lru_cache(maxsize=8192)
def _squares(series: Series) -> tuple[tuple[int, float], ...]:
    """(block, square) for each degree of freedom that a series gives; a null's mean is known."""
    _finite(series.effects)
    _finite(series.contrasts)
    own = (
        [(series.first + i, e * e) for i, e in enumerate(series.effects)]
        if series.null
        else [(series.first + i + 1, r * r) for i, r in enumerate(residuals(series.effects))]
    )
    return (*own, *((series.first + i, c * c) for i, c in enumerate(series.contrasts)))


@lru_cache(maxsize=8192)
def _weight(age: int) -> float:
    return float(0.5 ** (age / HALF_LIFE))


def spread(effects: Sequence[float], past: Pool) -> Spread:
    """Pool a lever's own spread with the past's; its own alone if it is far larger (F, p < .01).

    nu = nu0 + n - 1. The result already carries the canaries' inflation, and its bits do not
    depend on the order of the effects.
    """
    mean = math.fsum(effects) / len(effects)
    own = math.fsum((e - mean) ** 2 for e in effects)
    free = len(effects) - 1
    nu = past.nu + free
    if nu <= 0:
        return Spread(math.inf, 0.0, False)
    if free > 0 and past.nu > 0 and past.variance > 0:
        ratio = own / free / past.variance
        if 1.0 - float(fdtr(free, past.nu, ratio)) < 0.01:
            return Spread(own / free * past.inflation, float(free), True)
    return Spread((past.nu * past.variance + own) / nu * past.inflation, nu, False)


def effect_band(
    effects: Sequence[float], past: Pool, *, alpha: float = 0.05, g: float = PRIOR_SCALE
) -> Band:
    """The band that stays valid however often one looks, around the mean effect.

    Half-width sqrt(s2 / n) sqrt(nu (K - 1) / (1 - K / (1 + n g))) with
    K = (sqrt(1 + n g) / alpha)^(2 / (nu + 1)); infinite while K >= 1 + n g.
    Raises StatisticsError without effects or with one that is not finite.
    """
    _finite(effects)
    if not effects:
        raise StatisticsError("a band needs at least one block")
    n = len(effects)
    mean = math.fsum(effects) / n
    used = spread(effects, past)
    width = half_width(n, used.nu, alpha, g)
    half = math.sqrt(used.variance / n) * width if math.isfinite(width) else math.inf
    return Band(mean, mean - half, mean + half, n, used.nu)


def half_width(n: int, nu: float, alpha: float, g: float = PRIOR_SCALE) -> float:
    """Half-width of the anytime band in units of the standard error of the mean."""
    if nu <= 0:
        return math.inf
    k = (math.sqrt(1 + n * g) / alpha) ** (2 / (nu + 1))
    return math.inf if k >= 1 + n * g else math.sqrt(nu * (k - 1) / (1 - k / (1 + n * g)))


def e_value(n: int, mean: float, variance: float, nu: float, g: float = PRIOR_SCALE) -> float:
    """One-sided t e-value against `mean <= 0` after n blocks, valid at any stopping time.

    The Bayes factor of N(0, g) on positive standardised effects with sigma integrated out.
    `variance` already carries the inflation. Without degrees of freedom nothing is known: 0.
    """
    if nu <= 0 or not (math.isfinite(variance) and variance > 0):
        return 0.0
    shrink = 1 + n * g
    t2 = mean * mean * n / variance
    log_two_sided = -0.5 * math.log(shrink) + (nu + 1) / 2 * (
        math.log1p(t2 / nu) - math.log1p(t2 / (shrink * nu))
    )
    scale = math.sqrt((nu * variance + n * mean * mean / shrink) / (nu + 1) * g / shrink)
    side = float(stdtr(nu + 1, mean * n * g / shrink / scale))
    if side <= 0.0:
        return 0.0
    log_e = math.log(2.0) + math.log(side) + log_two_sided
    return math.exp(min(log_e, 700.0))


def needed_t(n: int, nu: float, alpha_t: float) -> float:
    """The sqrt(n) mean / s at which the e-value reaches 1 / alpha_t; inf if it never does.

    Found by bisection: the e-value grows with t.
    """
    if alpha_t <= 0 or nu <= 0:
        return math.inf
    low, high = 0.0, 1e6
    if e_value(n, high / math.sqrt(n), 1.0, nu) < 1 / alpha_t:
        return math.inf
    for _ in range(60):
        middle = (low + high) / 2
        if e_value(n, middle / math.sqrt(n), 1.0, nu) < 1 / alpha_t:
            low = middle
        else:
            high = middle
    return high


def level_band(levels: Sequence[float], past: Pool, *, alpha: float = 0.05) -> Band:
    """Where the next load of a configuration should fall: mean -+ t sqrt(s2 (1 + 1/n))."""
    _finite(levels)
    if not levels:
        raise StatisticsError("a band needs at least one load")
    n = len(levels)
    mean = math.fsum(levels) / n
    used = spread(levels, past)
    if used.nu <= 0:
        return Band(mean, -math.inf, math.inf, n, 0.0)
    half = float(stdtrit(used.nu, 1 - alpha / 2)) * math.sqrt(used.variance * (1 + 1 / n))
    return Band(mean, mean - half, mean + half, n, used.nu)


def gain_fraction(log_gain: float) -> float:
    """Fraction of time saved for a log gain: 1 - exp(-gain)."""
    return -math.expm1(-log_gain) if log_gain > -700 else -math.inf


def log_gain(fraction: float) -> float:
    """Inverse of `gain_fraction`."""
    if not fraction < 1:
        raise StatisticsError(f"no time is left after a gain of {fraction}")
    return -math.log1p(-fraction)


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def _finite(values: Sequence[float]) -> None:
    for value in values:
        if not math.isfinite(value):
            raise StatisticsError(f"{value} is not a measurement")
