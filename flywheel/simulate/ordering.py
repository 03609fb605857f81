"""Which order finds the gain soonest? Whole queues, tried in our order and in others'.

Each lever is decided by the loop's own rule on loads of an invented box, and our order knows
nothing but what a ledger would: how earlier levers ended, their loads and their minutes.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean, stdev

import numpy as np
from scipy.special import stdtrit

from flywheel.simulate.box import BASE as BOX, Machine
from flywheel.simulate.informed import GAINS, Answer, FamiliesKnown, OddsKnown
from flywheel.simulate.landscape import BASE, LANDSCAPES, Landscape, Prospect, draw
from flywheel.simulate.ours import Campaign
from flywheel.simulate.study import COINS, pool
from flywheel.simulate.truth import Truth
from flywheel.statistics.campaign import FULL
from flywheel.statistics.forecast import Forecast, Idea, Past

# Every lever is confirmed, so that the orders differ in nothing else.
SETTINGS = replace(FULL, budget=BASE.levers)
HORIZONS = (1.0, 0.25)
# Levers of each true gain from which it is learnt how the rule answers.
TRIALS = 40
Curve = tuple[tuple[float, float], ...]
Order = Callable[[Sequence[Prospect], Sequence[Past], np.random.Generator], int]


def fifo(_open: Sequence[Prospect], _past: Sequence[Past], _dice: np.random.Generator) -> int:
    """The order in which they were written down."""
    return 0


def by_lot(open_: Sequence[Prospect], _past: Sequence[Past], dice: np.random.Generator) -> int:
    """Any of them."""
    return int(dice.integers(len(open_)))


def predicted(open_: Sequence[Prospect], _past: Sequence[Past], _dice: np.random.Generator) -> int:
    """The largest prediction."""
    return max(range(len(open_)), key=lambda i: open_[i].predicted)


def ours(open_: Sequence[Prospect], past: Sequence[Past], _dice: np.random.Generator) -> int:
    """The highest priority by the loop's own forecast."""
    forecast = Forecast(past)

    def value(i: int) -> float:
        one = open_[i]
        idea = Idea(one.family, one.predicted, one.hot, one.slow, one.share)
        return forecast.priority(idea).value

    return max(range(len(open_)), key=value)


def oracle(open_: Sequence[Prospect], _past: Sequence[Past], _dice: np.random.Generator) -> int:
    """The highest true gain for its true pace; nobody can know either."""
    return max(
        range(len(open_)),
        key=lambda i: open_[i].worth / open_[i].load_minutes / (1 if open_[i].hot else 4),
    )


SIMPLE: dict[str, Order] = {
    "ours": ours,
    "oracle": oracle,
    "largest prediction": predicted,
    "random": by_lot,
    "FIFO": fifo,
}
# What is to be known besides single levers: of every family the truth, or how families are drawn.
FAMILIES_KNOWN, ODDS_KNOWN = "families known", "odds known"
ORDERS = (*SIMPLE, FAMILIES_KNOWN, ODDS_KNOWN)


def orders(landscape: Landscape, queue: Sequence[Prospect]) -> dict[str, Order]:
    """Every order of ORDERS for one queue; the last two say what any could reach."""
    answers = {hot: answer(hot=hot) for hot in (True, False)}
    return {
        **SIMPLE,
        FAMILIES_KNOWN: FamiliesKnown(landscape, answers),
        ODDS_KNOWN: OddsKnown(landscape, answers, queue),
    }


@cache
def answer(*, hot: bool) -> Answer:
    """How the rule answers to true gains on the box of this study, from levers of each size."""
    dice = np.random.default_rng([zlib.crc32(b"answer"), int(hot)])
    told: dict[float, list[tuple[float | None, int]]] = {gain: [] for gain in GAINS}
    for _ in range(TRIALS):
        # A campaign each, so that none has spent the error budget of a queue.
        bench = Bench(Machine(BOX, dice), (dice.random(COINS) < 0.5).tolist())
        for gain in dice.permutation(GAINS).tolist():
            told[gain].append(bench.settle(gain, hot=hot))
    return Answer(
        tuple(fmean(claimed is not None for claimed, _ in told[gain]) for gain in GAINS),
        tuple(fmean(loads for _, loads in told[gain]) for gain in GAINS),
    )


class Bench:
    """Decides one lever after another, and counts the loads that this takes."""

    def __init__(self, machine: Machine, coins: Sequence[bool]) -> None:
        self._machine = machine
        self._kinds = {hot: Campaign(machine, coins, SETTINGS, hot=hot) for hot in (True, False)}

    def decide(self, one: Prospect) -> tuple[float | None, int]:
        """The claimed log gain of a promotion, or None; and the loads that it took."""
        return self.settle(one.gain, hot=one.hot)

    def settle(self, gain: float, *, hot: bool) -> tuple[float | None, int]:
        """The same for a lever of that true log gain."""
        campaign, other = self._kinds[hot], self._kinds[not hot]
        before = self._machine.loads
        claimed = campaign.decide(Truth(gain))
        # Both kinds draw on one error budget.
        other.budget = campaign.budget
        return claimed, self._machine.loads - before


def curve(queue: Sequence[Prospect], order: Order, seed: Sequence[int]) -> Curve:
    """(minutes, true log gain of the promoted so far) after each lever of a queue."""
    dice = np.random.default_rng([*seed, 1])
    machine = Machine(BOX, np.random.default_rng([*seed, 2]))
    bench = Bench(machine, (dice.random(COINS) < 0.5).tolist())
    left, points = list(queue), [(0.0, 0.0)]
    past: list[Past] = []
    while left:
        one = left.pop(order(left, past, dice))
        claimed, loads = bench.decide(one)
        past.append(Past(one.family, one.predicted, claimed, one.hot, loads, (one.load_minutes,)))
        minutes, gained = points[-1]
        won = one.worth if claimed is not None else 0.0
        points.append((minutes + loads * one.load_minutes, gained + won))
    return tuple(points)


def area(points: Curve, until: float) -> float:
    """The integral of a step curve from 0 to that minute."""
    total = 0.0
    ends = [minutes for minutes, _ in points[1:]] + [math.inf]
    for (begin, gained), end in zip(points, ends, strict=True):
        total += gained * max(0.0, min(end, until) - begin)
    return total


@dataclass(frozen=True, slots=True)
class Ordered:
    """One order on one landscape, over many queues.

    `of_oracle` is its area under gain by time as a share of the oracle's, from the start to
    `horizon` of the longest campaign's time, with a 95 % interval over queues (None of one queue).
    """

    order: str
    landscape: str
    horizon: float
    queues: int
    of_oracle: float
    low: float | None
    high: float | None


def areas(landscape: Landscape, seed: int) -> dict[tuple[str, float], float]:
    """The area of every order on one queue, to every horizon of the longest campaign."""
    key = (seed, zlib.crc32(b"ordering"))
    queue = draw(landscape, np.random.default_rng([*key, 0]))
    curves = {name: curve(queue, order, key) for name, order in orders(landscape, queue).items()}
    longest = max(points[-1][0] for points in curves.values())
    return {
        (name, horizon): area(points, longest * horizon)
        for horizon in HORIZONS
        for name, points in curves.items()
    }


def study(
    queues: int,
    *,
    seed: int = 1,
    processes: int = 1,
    done: Callable[[], None] = lambda: None,
    landscapes: Sequence[Landscape] | None = None,
) -> tuple[Ordered, ...]:
    """Every order on the same queues of every landscape; `done` is called after each queue."""
    landscapes = tuple(LANDSCAPES.values()) if landscapes is None else landscapes
    tasks = [(one, seed + k) for one in landscapes for k in range(queues)]
    found = _spread(tasks, processes) if processes > 1 else (areas(*task) for task in tasks)
    out: list[Ordered] = []
    for landscape in landscapes:
        rows = []
        for _ in range(queues):
            rows.append(next(found))
            done()
        out += [
            _share(
                name,
                landscape.name,
                horizon,
                [row[name, horizon] for row in rows],
                [row["oracle", horizon] for row in rows],
            )
            for name, horizon in rows[0]
        ]
    return tuple(out)


def _spread(
    tasks: Sequence[tuple[Landscape, int]], processes: int
) -> Iterator[dict[tuple[str, float], float]]:
    with pool(processes) as workers:
        yield from workers.map(areas, *zip(*tasks, strict=True))


def _share(
    name: str, landscape: str, horizon: float, mine: Sequence[float], best: Sequence[float]
) -> Ordered:
    """The ratio of the sums, with the interval of a ratio estimator."""
    # Where nothing can be gained no order is behind another.
    n, ratio = len(mine), math.fsum(mine) / math.fsum(best) if any(best) else 1.0
    if n < 2 or not any(best):
        return Ordered(name, landscape, horizon, n, ratio, None, None)
    residuals = [a - ratio * b for a, b in zip(mine, best, strict=True)]
    half = float(stdtrit(n - 1, 0.975)) * stdev(residuals) / math.sqrt(n) / fmean(best)
    return Ordered(name, landscape, horizon, n, ratio, ratio - half, ratio + half)
