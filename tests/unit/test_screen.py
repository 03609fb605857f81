"""The screen between two incumbents: what it lets through, and what it owes to no one."""

from __future__ import annotations

import math
import random

import pytest

from flywheel.statistics.band import Pool
from flywheel.statistics.decide import Rule
from flywheel.statistics.screen import Screened, choose, screen, screen_hot, spread_known

RULE = Rule()
PAST = Pool(0.007**2, 30.0)


def test_a_candidate_is_compared_with_the_incumbent_of_its_own_moment() -> None:
    """On a box that slows by 1 % a load, a candidate without effect shows none."""
    drifting = [0.00, 0.01, 0.02, 0.03]
    assert [s.gain for s in screen(drifting, PAST, RULE)] == pytest.approx([0.0, 0.0], abs=1e-12)
    faster = [0.00, 0.01 - 0.05, 0.02, 0.03]
    first, second = screen(faster, PAST, RULE)
    assert first.gain == pytest.approx(0.05)
    assert first.passed
    assert not second.passed


def test_the_spread_of_both_incumbents_counts() -> None:
    first, second = screen([0.0] * 4, PAST, RULE)
    assert first.sd == pytest.approx(0.007 * math.sqrt(1 + 5 / 9))
    assert first.sd == pytest.approx(second.sd)
    assert screen([0.0] * 3, PAST, RULE)[0].sd == pytest.approx(0.007 * math.sqrt(1.5))


def test_one_null_in_four_passes() -> None:
    dice = random.Random(1)
    made = [
        s.passed
        for _ in range(2000)
        for s in screen([dice.gauss(0, 0.007) for _ in range(4)], PAST, RULE)
    ]
    assert sum(made) / len(made) == pytest.approx(0.25, abs=0.03)


def test_what_the_canaries_show_raises_the_bar() -> None:
    calm, wild = screen_hot(0.006, PAST, RULE), screen_hot(0.006, Pool(0.007**2, 30, 4.0, 9), RULE)
    assert calm.passed
    assert not wild.passed
    assert "worth less than" in wild.sentence
    assert "passed" in calm.sentence
    assert wild.band.high > calm.band.high > 0.006


def test_without_a_spread_nothing_is_screened() -> None:
    assert spread_known(PAST)
    assert not spread_known(Pool(0.0, 0.0))
    assert not spread_known(Pool(0.0, 30.0))
    assert not spread_known(Pool(1.0, 1.0))


def test_a_family_sends_its_best_and_only_it() -> None:
    def one(gain: float) -> Screened:
        return screen_hot(gain, PAST, RULE)

    made = choose([("tile", one(0.02)), ("tile", one(0.03)), ("moe", one(0.01)), ("x", one(0.0))])
    assert made == {"tile": 1, "moe": 2}
