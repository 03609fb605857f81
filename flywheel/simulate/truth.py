"""What the levers of an invented campaign are really worth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flywheel.simulate.box import Box
from flywheel.statistics.band import log_gain

LEVERS = 300
POSITIVE, NEGATIVE, MEAN = 0.08, 0.12, 0.015


@dataclass(frozen=True, slots=True)
class Truth:
    """One lever: its true log gain, and by how much its loads spread wider than others."""

    gain: float
    times: float = 1.0


def draw(kind: str, box: Box, dice: np.random.Generator, levers: int = LEVERS) -> list[Truth]:
    """The levers of one campaign.

    `mixed`: 8 % gain, 12 % lose, both exponential with mean 1.5 %, the rest are null; `null`: all
    are; a number such as `0.02`: 8 % gain exactly that fraction of the time, the rest are null.
    """
    place = dice.random(levers)
    gains = np.zeros(levers)
    if kind == "mixed":
        size = dice.exponential(MEAN, levers)
        gains = np.where(place < POSITIVE, size, gains)
        gains = np.where(place > 1 - NEGATIVE, -size, gains)
    elif kind != "null":
        gains = np.where(place < POSITIVE, log_gain(float(kind)), gains)
    times = np.where(dice.random(levers) < box.wild, box.wild_times, 1.0)
    return [Truth(float(g), float(t)) for g, t in zip(gains, times, strict=True)]
