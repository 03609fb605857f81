"""Invented queues: levers in families, each with its worth, its prediction and its cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from flywheel.statistics.band import gain_fraction


@dataclass(frozen=True, slots=True)
class Landscape:
    """What a queue looks like. Gains are logs (0.015 is about 1.5 % of the time).

    `levers` in `families` of uneven size. A family's hit rate is Beta-distributed with mean `hits`
    and `alike` pseudo-counts (few: families differ much). What a lever could gain is exponential
    around its family's size, `size` times a log-normal of `size_spread`; a hit gains it, of the
    others `lose` cost as much and the rest do nothing. Its prediction is off by the family's habit
    (`habit`, sd of the log) and by a guess of its own (`guess`). A family is cold at `cold_rate`
    and compiles first at `slow_rate`; a load takes `load_minutes`, a slow one `slow_minutes`, both
    times a log-normal of `pace`. At `part_rate` a family touches only a part of the traffic.
    """

    name: str = "base"
    levers: int = 200
    families: int = 20
    hits: float = 0.10
    alike: float = 4.0
    lose: float = 0.13
    size: float = 0.015
    size_spread: float = 0.5
    habit: float = 0.5
    guess: float = 0.5
    cold_rate: float = 0.2
    slow_rate: float = 0.2
    load_minutes: float = 2.0
    slow_minutes: float = 8.0
    pace: float = 0.2
    part_rate: float = 0.2
    part: tuple[float, float] = (0.2, 0.6)


BASE = Landscape()
LANDSCAPES = {
    one.name: one
    for one in (
        BASE,
        Landscape("wild guesses", habit=1.0, guess=1.0),
        Landscape("families alike", alike=200.0, size_spread=0.1),
        Landscape("costs alike", cold_rate=0.0, slow_rate=0.0, pace=0.0),
        Landscape("few hits", hits=0.04),
    )
}


@dataclass(frozen=True, slots=True)
class Prospect:
    """One lever: `gain` is its true log gain where it applies, `predicted` a fraction.

    `kin` is the truth of its family, which no order may look at but a bound.
    """

    family: str
    kin: Family
    gain: float
    predicted: float
    hot: bool
    slow: bool
    load_minutes: float
    share: float

    @property
    def worth(self) -> float:
        """Its true log gain over all traffic."""
        return self.gain * self.share


def draw(landscape: Landscape, dice: np.random.Generator) -> list[Prospect]:
    """The levers of one campaign, in the order in which they were declared: family by family."""
    sizes = dice.dirichlet(np.full(landscape.families, 2.0))
    members = np.sort(dice.choice(landscape.families, landscape.levers, p=sizes))
    families = [Family.draw(landscape, dice) for _ in range(landscape.families)]
    return [_prospect(landscape, f"f{k:02d}", families[k], dice) for k in members.tolist()]


@dataclass(frozen=True, slots=True)
class Family:
    """What the levers of one family have in common: `hits` of them gain, around `size` (a log).

    `habit` is by how much their predictions are off (a log).
    """

    hits: float
    size: float
    habit: float
    hot: bool
    slow: bool
    load_minutes: float
    share: float

    @classmethod
    def draw(cls, landscape: Landscape, dice: np.random.Generator) -> Family:
        """One family of a landscape."""
        a, b = landscape.hits * landscape.alike, (1 - landscape.hits) * landscape.alike
        hits, size, habit, pace = dice.beta(a, b), *dice.standard_normal(3)
        cold, slow, part, share = dice.random(4)
        is_slow = slow < landscape.slow_rate
        minutes = landscape.slow_minutes if is_slow else landscape.load_minutes
        low, high = landscape.part
        return cls(
            hits=float(hits),
            size=landscape.size * math.exp(landscape.size_spread * size),
            habit=landscape.habit * habit,
            hot=bool(cold >= landscape.cold_rate),
            slow=bool(is_slow),
            load_minutes=minutes * math.exp(landscape.pace * pace),
            share=float(low + (high - low) * share) if part < landscape.part_rate else 1.0,
        )


def _prospect(
    landscape: Landscape, name: str, family: Family, dice: np.random.Generator
) -> Prospect:
    could = float(dice.exponential(family.size))
    place, guess = dice.random(), landscape.guess * dice.standard_normal()
    rest = 1 - family.hits
    lost = place > 1 - landscape.lose * rest
    gain = could if place < family.hits else -could if lost else 0.0
    stated = min(could * math.exp(family.habit + guess), 1.0)
    return Prospect(
        name,
        family,
        gain,
        gain_fraction(stated),
        family.hot,
        family.slow,
        family.load_minutes,
        family.share,
    )
