"""Blocks in, a verdict out. Pure: no clock, no ledger, no randomness.

The error rate is held by two things only: an e-value that stays valid however often one looks, and
the level alpha_t that the campaign grants to this test. All other checks can only withhold a
promotion, never make one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from scipy.special import fdtr

from flywheel.errors import DecisionError
from flywheel.statistics.band import (
    PRIOR_SCALE,
    Band,
    Pool,
    e_value,
    effect_band,
    gain_fraction,
    level_band,
    log_gain,
    needed_t,
    spread,
)
from flywheel.statistics.block import BlockEstimate

ENDINGS = ("promoted", "rejected", "inconclusive", "void", "incorrect")
RULE_VERSION = "e3"
# How unlikely a difference this small must be before the arms are taken to be one and the same.
TOO_CLEAN = 1e-4
MOST_BLOCKS = 1000
# A bias of the nulls raises the bar of every lever, up to this share of what would be useful.
BIAS_SHARE = 0.5
# Standard normal quantile for the 80 % power that the smallest detectable effect is stated at.
Z_POWER = 0.8416


@dataclass(frozen=True, slots=True)
class Rule:
    """The decision rule as data. Gains are fractions of time saved.

    `delta_min` is what a lever must be worth to be promoted (a bias of the nulls comes on top),
    `useful` what it must be shown to be worth less than before it is closed early, `guard` the loss
    that no category may hide; `tau` and `memory` are the losses of those metrics that none may hide
    (None: not guarded). `screen` is the quantile of Student's t that a screened cold lever must
    reach to be confirmed.
    """

    delta_min: float = 0.005
    useful: float = 0.01
    guard: float = 0.02
    tau: float | None = None
    memory: float | None = None
    screen: float = 0.75
    n_min: int = 2
    n_max: int = 8
    futility_t: float = 0.5
    alpha_band: float = 0.05
    version: str = RULE_VERSION

    def as_dict(self) -> dict[str, object]:
        """Plain JSON."""
        return asdict(self)

    @property
    def most_bias(self) -> float:
        """The log effect that nulls may show: with more, too little of what is useful is left."""
        return BIAS_SHARE * log_gain(self.useful)

    @property
    def margins(self) -> dict[str, float]:
        """The loss that each guarded metric may not hide."""
        known = {"tau": self.tau, "memory": self.memory}
        return {name: margin for name, margin in known.items() if margin is not None}

    def __post_init__(self) -> None:
        if not (0 < self.delta_min <= self.useful < 1 and 0 < self.guard < 1):
            raise DecisionError("a rule needs 0 < delta_min <= useful < 1 and 0 < guard < 1")
        if not (0.5 <= self.screen < 1 and all(0 < m < 1 for m in self.margins.values())):
            raise DecisionError("a rule needs 0.5 <= screen < 1 and guards between 0 and 1")
        if not 2 <= self.n_min <= self.n_max <= MOST_BLOCKS:
            raise DecisionError(f"a rule needs 2 <= n_min <= n_max <= {MOST_BLOCKS}")
        if not (0 < self.alpha_band < 1 and abs(self.futility_t) < math.inf):
            raise DecisionError("a rule needs 0 < alpha_band < 1 and a finite futility_t")


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that one decision may look at.

    `guards` holds the variance pool of each guarded category, `metrics` that of each guarded metric
    (those that the lever openly trades are left out). `floor_ms` is the time per token
    below which no result is possible, `ceiling` the lever's own upper bound; None when unknown.
    """

    blocks: tuple[BlockEstimate, ...]
    past: Pool
    alpha_t: float
    guards: Mapping[str, Pool] = field(default_factory=dict)
    metrics: Mapping[str, Pool] = field(default_factory=dict)
    ceiling: float | None = None
    floor_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known after these blocks; `ending` is None while more blocks are wanted.

    `band` is the anytime-valid band of the log gain (positive is better). `detectable` is the
    smallest gain (fraction) that would have been promoted with 80 % power.
    """

    ending: str | None
    code: str
    sentence: str
    n: int
    band: Band | None
    e_value: float
    alpha_t: float
    detectable: float | None = None
    regressions: tuple[str, ...] = ()
    unstable: bool = False
    sd: float = math.nan

    @property
    def worth_less_than(self) -> float | None:
        """Upper bound of the gain as a fraction; None when the band says nothing."""
        if self.band is None or not math.isfinite(self.band.high):
            return None
        return gain_fraction(self.band.high)

    @property
    def shrunk_gain(self) -> float | None:
        """The mean gain as a fraction, shrunk by n g / (1 + n g): what a promotion records."""
        if self.band is None:
            return None
        weight = self.n * PRIOR_SCALE
        return gain_fraction(self.band.mean * weight / (1 + weight))


@dataclass(frozen=True, slots=True)
class Guard:
    """A guarded category or metric: the band of its log gain, and the loss it may not hide."""

    name: str
    band: Band
    margin: float

    @property
    def regressed(self) -> bool:
        """It got worse beyond doubt, and by more than the margin."""
        return self.band.high < 0 and self.band.mean < -self.margin

    @property
    def may_hide_a_loss(self) -> bool:
        """A loss of more than the margin cannot be excluded yet."""
        return self.band.low < -self.margin


def decide(evidence: Evidence, rule: Rule) -> Verdict:
    """The verdict after the evidence's blocks.

    In order: quarantine of the too good; promotion if the e-value reaches 1 / alpha_t and every
    check holds; a proven regression; rejection once the gain is bounded; inconclusive at n_max.
    Raises DecisionError for mixed metrics or kinds of block, StatisticsError for bad numbers.
    """
    blocks = evidence.blocks
    if not blocks:
        return Verdict(None, "no_block", "nothing measured yet", 0, None, 0.0, evidence.alpha_t)
    if len({(b.metric, b.hot) for b in blocks}) != 1:
        raise DecisionError("blocks of different metrics or kinds cannot decide one lever")
    gains = [b.gain for b in blocks]
    n = len(gains)
    band = effect_band(gains, evidence.past, alpha=rule.alpha_band)
    used = spread(gains, evidence.past)
    bar = bar_of(rule, evidence.past)
    margin = band.mean - bar
    e = e_value(n, margin, used.variance, used.nu)
    guards = guard_bands(evidence, rule)
    regressions = tuple(g.name for g in guards if g.regressed)

    def verdict(ending: str | None, code: str, sentence: str, **more: object) -> Verdict:
        sd = math.sqrt(used.variance) if used.nu > 0 else math.nan
        return Verdict(
            ending, code, sentence, n, band, e, evidence.alpha_t,
            regressions=regressions, unstable=used.unstable, sd=sd, **more,  # type: ignore[arg-type]
        )

    if doubt := too_good(evidence, band):
        return verdict("void", *doubt)
    reached = evidence.alpha_t > 0 and n >= rule.n_min and e >= 1 / evidence.alpha_t
    held = withheld(gains, guards, evidence.past, rule) if reached else None
    if reached and held is None:
        return verdict("promoted", "promoted", f"saves {percent(band.mean)} [{span(band)}]")
    if regressions and n >= rule.n_min:
        words = ", ".join(regressions)
        return verdict(
            "rejected", "regression", f"regression in {words}; {at_most(band.high)}"
        )
    hot = blocks[0].hot
    if n >= rule.n_min and (closed := _bounded(band, bar, used.variance, rule, hot=hot)):
        return verdict("rejected", closed, at_most(band.high))
    if n >= rule.n_max:
        seen = detectable(n, used.variance, used.nu, evidence.alpha_t, bar)
        code = held or "budget"
        said = f"could have seen {seen * 100:.1f} %" if seen is not None else "could see nothing"
        return verdict("inconclusive", code, said, detectable=seen)
    return verdict(None, held or "more", f"E {e:.3g} of {_threshold(evidence.alpha_t)}")


def bar_of(rule: Rule, past: Pool) -> float:
    """The log gain that a lever must exceed: the rule's own, and whatever the nulls are off zero.

    Rules before e3 did not know of the latter: their verdicts are rebuilt as they were. A bias that
    halts the loop counts no more once somebody has found its cause, and resumed.
    """
    counts = past.bias <= rule.most_bias and not rule.version.startswith("e2")
    return log_gain(rule.delta_min) + (past.bias if counts else 0.0)


def withheld(
    gains: Sequence[float], guards: Sequence[Guard], past: Pool, rule: Rule
) -> str | None:
    """Why a lever whose e-value suffices is not promoted yet; None when nothing speaks against it.

    `one_load` when leaving out a single block turns the gain around (a cold block is left out
    whole, as an invalid load would void it whole), `spread` when the gain does not beat where the
    next load could fall, `guard` when some category or guarded metric could hide a loss.
    """
    n, total = len(gains), math.fsum(gains)
    if any((total - g) / (n - 1) <= 0 for g in gains):
        return "one_load"
    if total / n <= level_band(gains, past, alpha=rule.alpha_band).half / math.sqrt(n):
        return "spread"
    return "guard" if any(g.may_hide_a_loss for g in guards) else None


def guard_bands(evidence: Evidence, rule: Rule) -> tuple[Guard, ...]:
    """The anytime band of the log gain of each guarded category, then of each guarded metric."""
    blocks, out = evidence.blocks, []
    watched = [
        *((c, past, rule.guard, [b.categories for b in blocks])
          for c, past in sorted(evidence.guards.items())),
        *((m, past, rule.margins[m], [b.guards for b in blocks])
          for m, past in sorted(evidence.metrics.items()) if m in rule.margins),
    ]
    for name, past, margin, effects in watched:
        gains = [-e for block in effects for known, e in block if known == name]
        if gains:
            band = effect_band(gains, past, alpha=rule.alpha_band)
            out.append(Guard(name, band, log_gain(margin)))
    return tuple(out)


def too_good(evidence: Evidence, band: Band) -> tuple[str, str] | None:
    """Code and sentence of what is too good, or too clean, to be true; None when nothing is."""
    blocks, past = evidence.blocks, evidence.past
    if blocks[0].metric == "ms_per_token":
        if all(b.effect == 0.0 for b in blocks):
            return "arms_probably_identical", "arms probably identical: no difference at all"
        if past.nu > 0 and past.variance > 0:
            ratio = math.fsum(b.effect**2 for b in blocks) / len(blocks) / past.variance
            if float(fdtr(len(blocks), past.nu, ratio)) < TOO_CLEAN:
                size = two_digits(max(abs(b.effect) for b in blocks))
                noise = two_digits(math.sqrt(past.variance))
                return (
                    "arms_probably_identical",
                    f"arms probably identical: they differ by {size}, noise is {noise}",
                )
        if evidence.floor_ms is not None:
            fastest = min(math.exp(b.level_log_ms + b.effect) for b in blocks)
            if fastest < evidence.floor_ms:
                return (
                    "faster_than_floor",
                    f"{fastest:.4g} ms/token is faster than the floor of {evidence.floor_ms:.4g}",
                )
    if evidence.ceiling is not None and len(blocks) >= 2 and band.low > log_gain(evidence.ceiling):
        return (
            "above_ceiling",
            f"a gain of {percent(band.mean)} is above its ceiling of "
            f"{evidence.ceiling * 100:.3g} %",
        )
    return None


def _bounded(band: Band, bar: float, variance: float, rule: Rule, *, hot: bool) -> str | None:
    """Why more blocks are not worth their time; None while they are.

    Another hot block is one load, so a losing lever is measured until its gain is bounded by what
    would be useful. A cold block is four: there a losing lever is closed with the bound it has.
    """
    if band.high < bar:
        return "bounded"
    margin = band.mean - bar
    t = margin * math.sqrt(band.n / variance) if variance > 0 else math.inf * margin
    losing = t < rule.futility_t and (not hot or band.high < log_gain(rule.useful))
    return "futile" if losing else None


def detectable(n: int, variance: float, nu: float, alpha_t: float, bar: float) -> float | None:
    """The gain over the log gain `bar` that n blocks would have promoted with 80 % power.

    A fraction of the time; None where there is none.
    """
    t = needed_t(n, nu, alpha_t)
    if not math.isfinite(t) or not math.isfinite(variance):
        return None
    return gain_fraction(bar + (t + Z_POWER) * math.sqrt(variance / n))


def percent(gain: float) -> str:
    """A log gain as printed: `4.1 %`."""
    return f"{gain_fraction(gain) * 100:.1f} %" if math.isfinite(gain) else "anything"


def two_digits(fraction: float) -> str:
    """A share in per cent to two digits, never in powers of ten: `0.27 %`, `14 %`, `160 %`."""
    value = fraction * 100
    if abs(value) >= 9.95:
        return f"{value:.0f} %"
    return f"{value:.2g} %" if abs(value) >= 0.001 else f"{abs(value):.2f} %"


def at_most(high: float) -> str:
    """The upper end of a log gain in words: `worth less than 1.9 %`, `costs more than 13.8 %`."""
    if high >= 0:
        return f"worth less than {percent(high)}"
    return f"costs more than {-gain_fraction(high) * 100:.1f} %"


def span(band: Band) -> str:
    """The band of a log gain as printed: `3.3, 4.9`."""
    return ", ".join(
        f"{gain_fraction(end) * 100:.1f}" if math.isfinite(end) else "?"
        for end in (band.low, band.high)
    )


def _threshold(alpha_t: float) -> str:
    return f"{1 / alpha_t:.3g}" if alpha_t > 0 else "infinity"
