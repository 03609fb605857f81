"""The rules of other loops, on the same boxes. Each takes a machine and levers in their order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, stdev

import numpy as np
from scipy.special import stdtrit

from flywheel.simulate.box import Machine
from flywheel.simulate.outcome import Outcome
from flywheel.simulate.truth import Truth
from flywheel.statistics.block import PATTERNS, abba

REPEATS = 5
WITHIN_SD = 0.003

Peer = Callable[[Machine, Sequence[Truth], np.random.Generator], Outcome]


def _greedy(machine: Machine, truth: Sequence[Truth], floor: float) -> Outcome:
    """Keep whatever measures better than the stored best by more than `floor`."""
    best, base, claims = machine.load(), 0.0, {}
    for i, one in enumerate(truth):
        cost = machine.load(base + one.gain, one.times)
        if best - cost > floor:
            claims[i] = best - cost
            best, base = cost, base + one.gain
    return _outcome(truth, claims, machine)


def greedy(machine: Machine, truth: Sequence[Truth], dice: np.random.Generator) -> Outcome:
    """One load a lever against the stored best."""
    return _greedy(machine, truth, 0.0)


def threshold(machine: Machine, truth: Sequence[Truth], dice: np.random.Generator) -> Outcome:
    """The same, and it must be 1 % faster."""
    return _greedy(machine, truth, math.log1p(0.01))


def floor_of_two(machine: Machine, truth: Sequence[Truth], dice: np.random.Generator) -> Outcome:
    """The same, and it must beat twice the difference of two baselines."""
    return _greedy(machine, truth, 2 * abs(machine.load() - machine.load()))


def repeats(machine: Machine, truth: Sequence[Truth], dice: np.random.Generator) -> Outcome:
    """One load of each arm; the repeats inside them are taken for samples of a 95 % interval."""
    base, claims = 0.0, {}
    t = float(stdtrit(2 * REPEATS - 2, 0.975))
    for i, one in enumerate(truth):
        noise = WITHIN_SD * dice.standard_normal((2, REPEATS))
        a = (machine.load(base) + noise[0]).tolist()
        b = (machine.load(base + one.gain, one.times) + noise[1]).tolist()
        gain = fmean(a) - fmean(b)
        if gain > t * math.sqrt((stdev(a) ** 2 + stdev(b) ** 2) / REPEATS):
            claims[i] = gain
            base += one.gain
    return _outcome(truth, claims, machine)


def _paired(machine: Machine, truth: Sequence[Truth], blocks: int) -> Outcome:
    """ABBA blocks and the plain paired t test at 2.5 %, one-sided."""
    base, claims = 0.0, {}
    t = float(stdtrit(blocks - 1, 0.975))
    for i, one in enumerate(truth):
        gains = []
        for _ in range(blocks):
            costs = [
                machine.load(base + (one.gain if arm == "B" else 0.0),
                             one.times if arm == "B" else 1.0)
                for arm in PATTERNS[0]
            ]
            gains.append(-abba(costs, PATTERNS[0])[0])
        if fmean(gains) > t * stdev(gains) / math.sqrt(blocks):
            claims[i] = fmean(gains)
            base += one.gain
    return _outcome(truth, claims, machine)


def paired_two(machine: Machine, truth: Sequence[Truth], dice: np.random.Generator) -> Outcome:
    """Two ABBA blocks, plain paired t."""
    return _paired(machine, truth, 2)


def paired_four(machine: Machine, truth: Sequence[Truth], dice: np.random.Generator) -> Outcome:
    """Four ABBA blocks, plain paired t."""
    return _paired(machine, truth, 4)


def _outcome(truth: Sequence[Truth], claims: dict[int, float], machine: Machine) -> Outcome:
    return Outcome(tuple(t.gain for t in truth), claims, machine.loads, tests=len(truth))


PEERS: dict[str, tuple[str, Peer]] = {
    "greedy": ("greedy against the stored best", greedy),
    "threshold": ("greedy, 1 % threshold", threshold),
    "floor": ("twice the difference of two baselines", floor_of_two),
    "repeats": ("repeats as samples, 95 % interval", repeats),
    "paired2": ("2 ABBA blocks, paired t", paired_two),
    "paired4": ("4 ABBA blocks, paired t", paired_four),
}
