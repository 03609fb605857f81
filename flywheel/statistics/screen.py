"""The screen: candidates between two incumbents, one load each. Pure.

    A x1 x2 A

A cold lever costs four loads a block, so most are turned away after one. Each candidate is compared
with the incumbent as it would have been at that moment, interpolated between the loads before and
after. A screen promotes nothing and lends nothing: what passes is confirmed on fresh blocks, what
fails spends no test of the error budget. A candidate alone between two incumbents is not screened:
its bracket would cost a block.

A hot block is one load already, so screening a hot lever saves no load. It saves tests: where more
levers wait than the error budget has tests left, one block decides whether to spend a test on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace

from scipy.special import stdtrit

from flywheel.statistics.band import Band, Pool
from flywheel.statistics.decide import Rule, at_most, percent

PATTERN = "AXXA"


@dataclass(frozen=True, slots=True)
class Screened:
    """What one load said about one candidate, on the log scale; positive gains are better.

    `passed` is `gain > needed`; `low` and `high` are the ends of its 95 % band.
    """

    gain: float
    sd: float
    nu: float
    needed: float
    low: float
    high: float

    @property
    def passed(self) -> bool:
        """Worth a confirmation."""
        return self.gain > self.needed

    def under(self, rule: Rule) -> Screened:
        """The same load held against another rule's quantile."""
        return replace(self, needed=float(stdtrit(self.nu, rule.screen)) * self.sd)

    def agrees(self, other: Screened) -> bool:
        """Whether both say the same up to rounding."""
        mine, theirs = astuple(self), astuple(other)
        return self.passed == other.passed and all(
            math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
            for a, b in zip(mine, theirs, strict=True)
        )

    @property
    def band(self) -> Band:
        """The band of a single look at one load."""
        return Band(self.gain, self.low, self.high, 1, self.nu)

    @property
    def sentence(self) -> str:
        """As printed."""
        if self.passed:
            return f"passed the screen with {percent(self.gain)}"
        return f"screened out with {percent(self.gain)}; {at_most(self.high)}"


def spread_known(past: Pool) -> bool:
    """Whether enough is known about the spread of loads to screen by it."""
    return past.nu >= 2 and past.variance > 0


def screen(costs: Sequence[float], past: Pool, rule: Rule) -> tuple[Screened, ...]:
    """One answer for each candidate between the two incumbents at the ends of `costs` (log cost).

    With place w between the ends, d = (1 - w) A1 + w A2 - x and Var = s2 (1 + w2 + (1 - w)2),
    s2 inflated by what the canaries show. A candidate passes when d > t sd at the rule's quantile.
    """
    first, *between, last = costs
    out = []
    for i, cost in enumerate(between, start=1):
        w = i / (len(costs) - 1)
        gain = math.fsum(((1 - w) * first, w * last, -cost))
        out.append(_screened(gain, past.sd * math.sqrt(1 + w * w + (1 - w) ** 2), past.nu, rule))
    return tuple(out)


def screen_hot(gain: float, past: Pool, rule: Rule) -> Screened:
    """The answer of one hot block: both arms were in one load, so Var = s2."""
    return _screened(gain, past.sd, past.nu, rule)


def _screened(gain: float, sd: float, nu: float, rule: Rule) -> Screened:
    needed, reach = (float(stdtrit(nu, q)) * sd for q in (rule.screen, 0.975))
    return Screened(gain, sd, nu, needed, gain - reach, gain + reach)


def choose(screened: Sequence[tuple[str, Screened]]) -> dict[str, int]:
    """The best candidate of each family that passed: family -> index into `screened`.

    Levers that differ only in a number are one family: the screen chooses among them, and only the
    chosen one is confirmed, so a family spends one test however many values it has.
    """
    chosen: dict[str, int] = {}
    for i, (family, one) in enumerate(screened):
        if not one.passed:
            continue
        best = chosen.get(family)
        if best is None or one.gain / one.sd > screened[best][1].gain / screened[best][1].sd:
            chosen[family] = i
    return chosen
