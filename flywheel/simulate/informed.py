"""How good can an order be that knows no single lever beforehand? Two that know more than ours.

`FamiliesKnown` is told the truth of every family, so a lever's outcome says nothing of another's.
Then no order gains more on average than the largest expected gain for the expected time (Smith's
rule): it bounds whatever can be learnt. `OddsKnown` is told how families are drawn, and learns each
by Bayes from what it sees; ours has to learn both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv, ndtri

from flywheel.simulate.landscape import Landscape, Prospect
from flywheel.statistics.band import log_gain
from flywheel.statistics.forecast import Past

# True log gains, losses among them, for which it is known how the rule answers.
GAINS = (
    -0.03, -0.01, -0.003, 0.0, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.013, 0.017,
    0.023, 0.04,
)  # fmt: skip
# What a lever could gain, in equal steps of its log.
_COULD = np.exp(np.linspace(math.log(1e-5), 0.0, 160))
_SMALLEST = 1e-9
# Middles of equal parts of a family's distribution: of its rate, and of its size and its habit.
_RATES = (np.arange(15) + 0.5) / 15
_NORMAL = ndtri((np.arange(9) + 0.5) / 9)
# How far a claim is from the truth (sd of the log).
_CLAIM = 0.1


@dataclass(frozen=True, slots=True)
class Answer:
    """How the rule answers to each of GAINS: how often it promotes, and after how many loads."""

    promoted: tuple[float, ...]
    loads: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Kind:
    """The answer to hot or cold levers. Arrays over _COULD but `idle`, the loads of no effect."""

    promoted: np.ndarray
    loads: np.ndarray
    lost: np.ndarray
    idle: float

    @classmethod
    def of(cls, answer: Answer) -> _Kind:
        def at(gains: np.ndarray, values: Sequence[float]) -> np.ndarray:
            return np.interp(gains, GAINS, values)

        return cls(
            at(_COULD, answer.promoted), at(_COULD, answer.loads), at(-_COULD, answer.loads),
            float(at(np.zeros(1), answer.loads)[0]),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Hopes:
    """What is to be expected of one lever under a family's size and habit; arrays [size, habit].

    `stated` is how likely its prediction is. If it is a hit: `gain` of all traffic, `won` the
    chance of a promotion, `loads`. `otherwise` are the loads if it is none.
    """

    stated: np.ndarray
    gain: np.ndarray
    won: np.ndarray
    loads: np.ndarray
    otherwise: np.ndarray


def _hopes(
    one: Prospect, landscape: Landscape, kind: _Kind, sizes: np.ndarray, habits: np.ndarray
) -> _Hopes:
    """`sizes` [n] and `habits` [m] of its family that are possible."""
    prior = _COULD / sizes[:, None] * np.exp(-_COULD / sizes[:, None])
    off = _stated(one.predicted) - habits[:, None] - np.log(_COULD)
    weights = prior[:, None, :] * np.exp(-0.5 * (off / landscape.guess) ** 2)
    total = weights.sum(-1)
    weights /= total[..., None]
    lose = landscape.lose
    return _Hopes(
        total,
        weights @ (kind.promoted * _COULD) * one.share,
        weights @ kind.promoted,
        weights @ kind.loads,
        lose * (weights @ kind.lost) + (1 - lose) * kind.idle,
    )


def _stated(predicted: float) -> float:
    return math.log(max(log_gain(predicted), _SMALLEST))


def _best(values: Sequence[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)


class FamiliesKnown:
    """The largest expected gain for the expected time, by the truth of every family."""

    def __init__(self, landscape: Landscape, answers: Mapping[bool, Answer]) -> None:
        """`answers` to hot and to cold levers."""
        self._landscape = landscape
        self._kinds = {hot: _Kind.of(answer) for hot, answer in answers.items()}
        self._values: dict[int, float] = {}

    def __call__(
        self, open_: Sequence[Prospect], _past: Sequence[Past], _dice: np.random.Generator
    ) -> int:
        return _best([self._value(one) for one in open_])

    def _value(self, one: Prospect) -> float:
        known = self._values.get(id(one))
        if known is not None:
            return known
        kin = one.kin
        hopes = _hopes(
            one, self._landscape, self._kinds[one.hot], np.array([kin.size]), np.array([kin.habit])
        )
        loads = kin.hits * hopes.loads + (1 - kin.hits) * hopes.otherwise
        value = kin.hits * hopes.gain.item() / (loads.item() * one.load_minutes)
        self._values[id(one)] = value
        return value


class OddsKnown:
    """The largest expected gain for the expected time, by a posterior of every family."""

    def __init__(
        self, landscape: Landscape, answers: Mapping[bool, Answer], queue: Sequence[Prospect]
    ) -> None:
        """`answers` to hot and to cold levers; every prediction of the `queue` is seen at once."""
        self._landscape = landscape
        a, b = landscape.hits * landscape.alike, (1 - landscape.hits) * landscape.alike
        self._rates = betaincinv(a, b, _RATES)[:, None, None]
        self._sizes = landscape.size * np.exp(landscape.size_spread * _NORMAL)
        self._habits = landscape.habit * _NORMAL
        kinds = {hot: _Kind.of(answer) for hot, answer in answers.items()}
        self._hopes = {
            id(one): _hopes(one, landscape, kinds[one.hot], self._sizes, self._habits)
            for one in queue
        }
        shape = (len(_RATES), len(self._sizes), len(self._habits))
        self._scores = {one.family: np.zeros(shape) for one in queue}
        for one in queue:
            self._scores[one.family] += np.log(self._hopes[id(one)].stated)
        self._paces: dict[str, float] = {}
        self._values: dict[int, float] = {}
        self._asked: Prospect | None = None

    def __call__(
        self, open_: Sequence[Prospect], past: Sequence[Past], _dice: np.random.Generator
    ) -> int:
        if past and self._asked is not None:
            self._learn(self._asked, past[-1])
        changed = None if self._asked is None else self._asked.family
        for one in open_:
            if changed in (None, one.family):
                self._values[id(one)] = self._value(one)
        found = _best([self._values[id(one)] for one in open_])
        self._asked = open_[found]
        return found

    def _learn(self, one: Prospect, told: Past) -> None:
        self._paces[one.family] = told.load_minutes[0]
        hopes, score = self._hopes[id(one)], self._scores[one.family]
        if told.gain is None:
            score += np.log1p(-self._rates * hopes.won)
            return
        # The claim takes the place of what could only be guessed from the prediction.
        off = _stated(one.predicted) - self._habits - math.log(told.gain)
        near = -0.5 * (off / math.hypot(self._landscape.guess, _CLAIM)) ** 2
        size = -told.gain / self._sizes - np.log(self._sizes)
        score += np.log(self._rates) + size[:, None] + near - np.log(hopes.stated)

    def _value(self, one: Prospect) -> float:
        hopes, score = self._hopes[id(one)], self._scores[one.family]
        weights = np.exp(score - score.max())
        weights /= weights.sum()
        loads = self._rates * hopes.loads + (1 - self._rates) * hopes.otherwise
        mean_loads = float((weights * loads).sum())
        usual = self._landscape.slow_minutes if one.slow else self._landscape.load_minutes
        pace = self._paces.get(one.family, usual)
        return float((weights * (self._rates * hopes.gain)).sum()) / (mean_loads * pace)
