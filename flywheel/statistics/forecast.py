"""What a lever is likely to bring for its time, learnt from the levers decided before it. Pure.

    priority = P(win) x E[gain | win] x share of traffic / minutes

P(win) is a Beta posterior of the lever's family. The prior that families share is itself learnt:
a grid over its mean and strength, each point weighed by how well it explains every family's record
(beta-binomial), so one family's luck says little while families are alike, and much once they are
not. E[gain | win] is the stated estimate times how measured gains compared with predicted ones:
the family's own ratio shrunk to everyone's, and falling with the estimate as fast as it did so far,
since of wild guesses the largest are the most overstated. Minutes are loads, as many as hot or cold
levers took, at the family's own pace. What nothing is known about starts from the constants below.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from scipy.special import betaincinv, betaln

from flywheel.statistics.band import gain_fraction, log_gain

# The prior of the prior: Beta(1, 2) for the mean of the families' odds, any strength alike.
_MEANS = betaincinv(1.0, 2.0, (np.arange(24) + 0.5) / 24)
_STRENGTHS = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
# How many promotions an assumed ratio of 1 (measured over predicted) is worth.
_RATIO_WEIGHT = 2.0
# The same for an assumed fall of 0, in promotions whose estimates are e times the typical one. It
# is more, for only what could be seen was promoted: of small estimates that is the lucky part.
_FALL_WEIGHT = 8.0
# A ratio further from 1 than this is a slip of the pen, not a habit of the family.
_RATIO_LIMIT = math.log(8.0)
LOAD_MINUTES = 2.0
# A load that compiles first, in loads of one that does not.
SLOW_TIMES = 4.0
LOADS = {True: 3.0, False: 12.0}
# How many decided levers that first guess of loads is worth.
_LOADS_WEIGHT = 4.0


@dataclass(frozen=True, slots=True)
class Past:
    """A decided lever. `predicted` is a fraction of time; `gain` the log gain of a promotion.

    `gain` is None for a lever that was not promoted; `load_minutes` holds its good loads.
    """

    family: str
    predicted: float
    gain: float | None
    hot: bool
    loads: int = 0
    load_minutes: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Idea:
    """An open lever: `predicted` and `ceiling` are fractions of time saved where it applies.

    `share` is how much of the traffic it applies to; `discount` multiplies its odds.
    """

    family: str
    predicted: float
    hot: bool = True
    slow: bool = False
    share: float = 1.0
    ceiling: float | None = None
    discount: float = 1.0


@dataclass(frozen=True, slots=True)
class Priority:
    """The terms of one lever's priority. `gain` is a fraction and holds `scale`, not `share`.

    `wins` of `tried` levers of its family were promoted.
    """

    chance: float
    gain: float
    scale: float
    share: float
    minutes: float
    wins: int
    tried: int

    @property
    def value(self) -> float:
        """Expected log gain of all traffic per minute."""
        return self.chance * log_gain(self.gain) * self.share / self.minutes

    @property
    def sentence(self) -> str:
        """As printed: the terms in the order of the formula, and what they were learnt from."""
        size = f"{self.gain * 100:.3g} %"
        if abs(self.scale - 1.0) >= 0.005:
            size += f" (predicted x {self.scale:.2g})"
        share = "" if self.share == 1.0 else f" x {self.share * 100:.3g} % of traffic"
        learnt = f"; its family won {self.wins} of {self.tried}" if self.tried else ""
        return f"P(win) {self.chance:.2f} x {size}{share} / {self.minutes:.3g} min{learnt}"


class Forecast:
    """Everything that decided levers say about open ones."""

    def __init__(self, past: Iterable[Past], load_minutes: float | None = None) -> None:
        """`load_minutes` is what a load takes where its family has none; None: by the past."""
        known = tuple(past)
        self._record: dict[str, tuple[int, int]] = _records(known)
        self._weights = _weigh(self._record.values())
        self._odds: dict[tuple[int, int], float] = {}
        self._misses = _misses(known)
        self._loads = {hot: _expected_loads(known, hot=hot) for hot in (True, False)}
        self._paces, pace = _paces(known)
        self._pace = pace if load_minutes is None else load_minutes

    def chance(self, family: str) -> float:
        """P(win) of a lever of that family."""
        wins, tried = known = self._record.get(family, (0, 0))
        if known not in self._odds:
            odds = (_MEANS[:, None] * _STRENGTHS + wins) / (_STRENGTHS + tried)
            self._odds[known] = float((self._weights * odds).sum())
        return self._odds[known]

    def scale(self, family: str, predicted: float) -> float:
        """Measured over predicted gain, for a promotion of that family and estimate (fraction)."""
        return self._misses.scale(family, predicted)

    def minutes(self, family: str, *, hot: bool, slow: bool) -> float:
        """Engine time until such a lever is decided."""
        pace = self._paces.get(family, self._pace * (SLOW_TIMES if slow else 1.0))
        return self._loads[hot] * pace

    def priority(self, idea: Idea) -> Priority:
        """The terms for one open lever."""
        scale = self.scale(idea.family, idea.predicted)
        gain = gain_fraction(log_gain(idea.predicted) * scale)
        if idea.ceiling is not None:
            gain = min(gain, idea.ceiling)
        wins, tried = self._record.get(idea.family, (0, 0))
        return Priority(
            self.chance(idea.family) * idea.discount,
            gain,
            scale,
            idea.share,
            self.minutes(idea.family, hot=idea.hot, slow=idea.slow),
            wins,
            tried,
        )


def _records(past: Sequence[Past]) -> dict[str, tuple[int, int]]:
    """Family -> (promoted, decided)."""
    found: dict[str, tuple[int, int]] = {}
    for one in past:
        wins, tried = found.get(one.family, (0, 0))
        found[one.family] = (wins + (one.gain is not None), tried + 1)
    return found


def _weigh(records: Iterable[tuple[int, int]]) -> np.ndarray:
    """The posterior weight of each (mean, strength) of the families' common prior."""
    a = _MEANS[:, None] * _STRENGTHS
    b = _STRENGTHS - a
    score = np.zeros_like(a)
    for wins, tried in records:
        score += betaln(a + wins, b + tried - wins) - betaln(a, b)
    weights = np.exp(score - score.max())
    return np.asarray(weights / weights.sum())


@dataclass(frozen=True, slots=True)
class _Misses:
    """How measured gains compared with predicted ones. All are logs.

    `common` is everyone's ratio at the estimate `typical`, `families` holds those that have one of
    their own, and `fall` says by how much it is less for an estimate that is e times as large.
    """

    common: float
    families: Mapping[str, float]
    fall: float
    typical: float

    def scale(self, family: str, predicted: float) -> float:
        """The ratio to expect of an estimate (a fraction); within the limit of a single one."""
        ratio = self.families.get(family, self.common)
        if predicted > 0:
            ratio -= self.fall * (math.log(log_gain(predicted)) - self.typical)
        return math.exp(max(-_RATIO_LIMIT, min(_RATIO_LIMIT, ratio)))


def _misses(past: Sequence[Past]) -> _Misses:
    """Fit to the promotions: one line for all, then a level of its own for each family."""
    won = [one for one in past if one.gain is not None and one.gain > 0 and one.predicted > 0]
    if not won:
        return _Misses(0.0, {}, 0.0, 0.0)
    stated = [math.log(log_gain(one.predicted)) for one in won]
    ratios = [
        max(-_RATIO_LIMIT, min(_RATIO_LIMIT, math.log(one.gain or 0.0) - x))
        for one, x in zip(won, stated, strict=True)
    ]
    typical, middle = math.fsum(stated) / len(won), math.fsum(ratios) / len(won)
    apart = [x - typical for x in stated]
    along = math.fsum(-d * (r - middle) for d, r in zip(apart, ratios, strict=True))
    # A larger estimate is never read as a smaller gain, nor as more than it says.
    fall = max(0.0, min(1.0, along / (math.fsum(d * d for d in apart) + _FALL_WEIGHT)))
    logs: dict[str, list[float]] = defaultdict(list)
    for one, d, ratio in zip(won, apart, ratios, strict=True):
        logs[one.family].append(ratio + fall * d)
    common = math.fsum(map(math.fsum, logs.values())) / (len(won) + _RATIO_WEIGHT)
    families = {
        family: (math.fsum(found) + _RATIO_WEIGHT * common) / (len(found) + _RATIO_WEIGHT)
        for family, found in logs.items()
    }
    return _Misses(common, families, fall, typical)


def _expected_loads(past: Sequence[Past], *, hot: bool) -> float:
    spent = [one.loads for one in past if one.hot is hot and one.loads]
    return (LOADS[hot] * _LOADS_WEIGHT + sum(spent)) / (_LOADS_WEIGHT + len(spent))


def _paces(past: Sequence[Past]) -> tuple[Mapping[str, float], float]:
    """Median minutes of a load: each family's, and everyone's."""
    found: dict[str, list[float]] = defaultdict(list)
    for one in past:
        found[one.family] += one.load_minutes
    every = [minutes for family in found.values() for minutes in family]
    paces = {family: median(minutes) for family, minutes in found.items() if minutes}
    return paces, median(every) if every else LOAD_MINUTES
