"""Bands against published figures, and the pool that learns the variance."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st
from scipy.integrate import quad
from scipy.stats import nct, t as student

from flywheel.errors import StatisticsError
from flywheel.statistics.band import (
    Pool,
    Series,
    e_value,
    effect_band,
    gain_fraction,
    half_width,
    level_band,
    log_gain,
    needed_t,
    null_bias,
    pool,
    residuals,
    spread,
)

QUIET = Pool(1.0, 30.0)


@pytest.mark.parametrize(
    ("nu0", "wanted"),
    [
        (30, {1: 3.35, 2: 2.30, 4: 1.63, 8: 1.17}),
        (8, {1: 4.46, 2: 2.76, 4: 1.85, 8: 1.27}),
        (0, {2: math.inf, 3: math.inf, 4: 3.61, 8: 1.49}),
    ],
)
def test_half_widths_are_those_of_the_method(nu0: int, wanted: dict[int, float]) -> None:
    for n, width in wanted.items():
        got = half_width(n, nu0 + n - 1, 0.05) / math.sqrt(n)
        assert round(got, 2) == width


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("z", [-0.4, 0.0, 1.3])
def test_the_e_value_is_the_half_normal_bayes_factor(n: int, z: float) -> None:
    """Checked against the definition: the noncentral t density averaged over N(0, g), positive."""
    nu, g, t = 7.0, 4.0, z * math.sqrt(n)

    def averaged(effect: float) -> float:
        prior = 2 * math.exp(-effect * effect / (2 * g)) / math.sqrt(2 * math.pi * g)
        return float(nct.pdf(t, nu, effect * math.sqrt(n))) * prior

    wanted = quad(averaged, 0, 12, limit=200)[0] / student.pdf(t, nu)
    assert e_value(n, z, 1.0, nu) == pytest.approx(wanted, rel=1e-4)


def test_the_e_value_has_mean_one_under_the_null() -> None:
    nu, n = 9.0, 2

    def weighted(t: float) -> float:
        return e_value(n, t / math.sqrt(n), 1.0, nu) * float(student.pdf(t, nu))

    assert quad(weighted, -200, 200, limit=800, points=[0])[0] == pytest.approx(1, abs=2e-3)


def test_without_degrees_of_freedom_nothing_is_known() -> None:
    assert e_value(1, 5.0, 1.0, 0) == 0.0
    assert e_value(1, 5.0, 0.0, 3) == 0.0
    assert e_value(3, -1e9, 1.0, 5) < 0.1
    assert e_value(30, -1e9, 1.0, 30) < 0.02
    assert math.isinf(effect_band([1.0], Pool(0.0, 0.0)).high)
    assert math.isinf(level_band([1.0], Pool(0.0, 0.0)).high)
    assert math.isinf(half_width(3, 0, 0.05))


def test_needed_t_is_where_the_e_value_reaches_the_threshold() -> None:
    t = needed_t(4, 30, 0.01)
    assert e_value(4, t / 2, 1.0, 30) == pytest.approx(100, rel=1e-6)
    assert needed_t(1, 1, 1e-9) == math.inf
    assert needed_t(4, 30, 0.0) == math.inf


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=9))
def test_residuals_hold_the_whole_spread_and_nothing_of_the_mean(effects: list[float]) -> None:
    mean = sum(effects) / len(effects)
    wanted = sum((e - mean) ** 2 for e in effects)
    assert sum(r * r for r in residuals(effects)) == pytest.approx(wanted, abs=1e-9)
    moved = residuals([e + 3 for e in effects])
    assert moved == pytest.approx(residuals(effects), abs=1e-9)


def test_the_pool_learns_from_nulls_spreads_and_contrasts() -> None:
    dice = random.Random(1)
    draw = lambda n: tuple(dice.gauss(0, 2) for _ in range(n))  # noqa: E731
    history = [
        Series(draw(40), 0, null=True),
        Series(tuple(5 + x for x in draw(40)), 40),
        Series((), 80, contrasts=draw(40)),
    ]
    made = pool(history)
    assert made.variance == pytest.approx(4, rel=0.35)
    assert (made.nu, made.nulls) == (30, 40)
    assert made.inflation < 1.4
    assert pool([]) == Pool(0.0, 0.0)


def test_nulls_that_are_off_zero_beyond_doubt_are_a_bias_and_others_are_none() -> None:
    off = Series((0.19, 0.18, 0.2, 0.18), 0, null=True)
    assert pool([off]).bias == pytest.approx(0.1875)
    assert pool([replace(off, null=False)]).bias == 0.0
    assert null_bias([-e for e in off.effects]) == pytest.approx(0.1875)
    assert null_bias(off.effects) == null_bias(off.effects[::-1])
    wide = (0.19, -0.18, 0.2, 0.18)
    assert [null_bias(e) for e in (wide, (0.19,), ())] == [0.0] * 3


def test_canaries_that_spread_more_than_the_rest_inflate() -> None:
    quiet = [Series(tuple(0.1 * (-1) ** i for i in range(30)), 0)]
    loud = Series((3.0, -3.0, 3.0), 30, null=True)
    assert pool([*quiet, loud]).inflation > 3
    assert pool(quiet).inflation == 1.0


def test_one_wild_block_cannot_set_the_variance() -> None:
    calm = Series(tuple((-1) ** i * 1.0 for i in range(20)), 0, null=True)
    wild = Series((100.0,), 20, null=True)
    assert pool([calm, wild]).variance < 3


def test_old_blocks_count_less() -> None:
    old = Series((3.0, -3.0, 3.0, -3.0), 0, null=True)
    new = Series((1.0, -1.0, 1.0, -1.0), 600, null=True)
    assert pool([old, new]).variance == pytest.approx(1, abs=0.05)


def test_a_lever_with_its_own_spread_is_unstable() -> None:
    used = spread([0.0, 10.0, -10.0], Pool(1.0, 30.0))
    assert used.unstable
    assert used.nu == 2
    assert used.variance == pytest.approx(100)
    calm = spread([0.0, 1.0, -1.0], Pool(1.0, 30.0))
    assert (calm.unstable, calm.nu) == (False, 32)


@given(st.permutations([0.01, -0.02, 0.005, 0.03]))
def test_the_order_of_blocks_does_not_matter(effects: list[float]) -> None:
    band = effect_band(effects, QUIET)
    wanted = effect_band([0.01, -0.02, 0.005, 0.03], QUIET)
    assert band.low == pytest.approx(wanted.low)
    assert band.high == pytest.approx(wanted.high)


def test_only_finite_numbers_are_measurements() -> None:
    for bad in (math.nan, math.inf):
        with pytest.raises(StatisticsError):
            effect_band([bad], QUIET)
        with pytest.raises(StatisticsError):
            level_band([bad], QUIET)
        with pytest.raises(StatisticsError):
            pool([Series((bad,))])
    for band in (effect_band, level_band):
        with pytest.raises(StatisticsError):
            band([], QUIET)


def test_the_level_band_says_where_the_next_load_falls() -> None:
    band = level_band([1.0, 2.0, 3.0], Pool(0.0, 0.0))
    assert band.half == pytest.approx(student.ppf(0.975, 2) * math.sqrt(1 + 1 / 3))
    assert band.mean == 2.0


@given(st.floats(-2, 0.9))
def test_gains_convert_both_ways(fraction: float) -> None:
    assert gain_fraction(log_gain(fraction)) == pytest.approx(fraction, abs=1e-12)


def test_a_gain_of_everything_is_refused() -> None:
    with pytest.raises(StatisticsError):
        log_gain(1.0)
    assert gain_fraction(-1e6) == -math.inf
