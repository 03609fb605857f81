"""Invented boxes: how loads of known cost would be measured on a machine that is not perfect."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

CHUNK = 4096


@dataclass(frozen=True, slots=True)
class Box:
    """What one box does to a measurement, in log cost (0.01 is about 1 %).

    `load_sd` between loads; `drift` the step of a random walk and `trend` a steady slope, each per
    load; the level shifts by `shift` either way at `shift_rate` a load; `bad_rate` of the loads are
    slow by a fraction drawn from `bad`, or off either way when `bad_both` is set. `heavy` draws
    from Student's t with 3 degrees of freedom at the same sd; `ar1` correlates neighbouring loads.
    `wild` of the levers spread `wild_times` as wide as others. `hot_sd` is the sd of a hot block.
    """

    name: str = "base"
    load_sd: float = 0.007
    drift: float = 0.0015
    trend: float = 0.0
    shift_rate: float = 0.01
    shift: float = 0.015
    bad_rate: float = 0.02
    bad: tuple[float, float] = (0.02, 0.08)
    bad_both: bool = False
    heavy: bool = False
    ar1: float = 0.0
    wild: float = 0.0
    wild_times: float = 1.0
    hot_sd: float = 0.003


BASE = Box()
BOXES = {
    box.name: box
    for box in (
        BASE,
        Box("quiet", load_sd=0.003, hot_sd=0.001),
        Box("noisy", load_sd=0.015, drift=0.004, hot_sd=0.008),
        Box("drift", drift=0.005),
        Box("trend", trend=0.003),
        Box("shifts", shift_rate=0.05),
        Box("heavy", heavy=True),
        Box("outliers", bad_rate=0.06, bad_both=True),
        Box("ar1", ar1=0.5),
        Box("wild", wild=0.1, wild_times=3.0),
    )
}


class Machine:
    """A stream of loads of one box. Not shared between campaigns: it has a memory."""

    def __init__(self, box: Box, dice: np.random.Generator) -> None:
        self.box = box
        self.loads = 0
        self._dice = dice
        self._level = 0.0
        self._before = 0.0
        self._ready: list[tuple[float, float]] = []

    def load(self, gain: float = 0.0, times: float = 1.0) -> float:
        """The measured log cost of one load whose configuration saves `gain` (log).

        `times` widens its own noise.
        """
        if not self._ready:
            self._ready = self._draw()[::-1]
        level, noise = self._ready.pop()
        self.loads += 1
        return level + noise * times - gain

    def hot(self, gain: float, times: float = 1.0) -> float:
        """The measured effect (log cost, negative is better) of one hot block.

        Both arms live in one process, so levels and drift cancel; what one process does to one arm
        does not, and neither does a disturbance.
        """
        self.loads += 1
        noise = self.box.hot_sd * float(self._noise(1)[0]) * times
        if self._dice.random() < self.box.bad_rate:
            noise += float(self._dice.uniform(*self.box.bad)) * self._dice.choice((-1.0, 1.0))
        return noise - gain

    def _noise(self, n: int) -> np.ndarray:
        if self.box.heavy:
            return np.asarray(self._dice.standard_t(3, n)) / math.sqrt(3)
        return np.asarray(self._dice.standard_normal(n))

    def _correlated(self, noise: np.ndarray) -> np.ndarray:
        rho, out = self.box.ar1, np.empty_like(noise)
        scale, before = math.sqrt(1 - rho * rho), self._before
        for i, fresh in enumerate(noise.tolist()):
            before = rho * before + scale * fresh
            out[i] = before
        self._before = before
        return out

    def _draw(self) -> list[tuple[float, float]]:
        box, dice = self.box, self._dice
        shifts = (dice.random(CHUNK) < box.shift_rate) * dice.choice((-1, 1), CHUNK) * box.shift
        steps = box.trend + box.drift * dice.standard_normal(CHUNK) + shifts
        level = self._level + np.cumsum(steps)
        self._level = float(level[-1])
        noise = self._noise(CHUNK)
        if box.ar1:
            noise = self._correlated(noise)
        off = dice.uniform(*box.bad, CHUNK)
        sign = dice.choice((-1.0, 1.0), CHUNK) if box.bad_both else np.ones(CHUNK)
        level = level - (dice.random(CHUNK) < box.bad_rate) * sign * np.log1p(-off)
        return list(zip(level.tolist(), (box.load_sd * noise).tolist(), strict=True))
