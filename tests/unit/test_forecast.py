"""What open levers promise, by what became of those before them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from flywheel.statistics.band import log_gain
from flywheel.statistics.forecast import LOAD_MINUTES, LOADS, SLOW_TIMES, Forecast, Idea, Past


def past(
    family: str, *, gain: float | None = None, predicted: float = 0.02, **more: object
) -> Past:
    return Past(family, predicted, gain, hot=True, **more)  # type: ignore[arg-type]


def record(family: str, wins: int, losses: int) -> list[Past]:
    return [past(family, gain=0.02)] * wins + [past(family)] * losses


def test_an_empty_ledger_gives_the_first_guesses() -> None:
    forecast = Forecast(())
    assert forecast.chance("tiles") == pytest.approx(1 / 3, abs=0.005)
    assert forecast.scale("tiles", 0.02) == 1.0
    assert forecast.minutes("tiles", hot=True, slow=False) == LOADS[True] * LOAD_MINUTES
    assert forecast.minutes("tiles", hot=False, slow=False) == LOADS[False] * LOAD_MINUTES
    assert forecast.minutes("tiles", hot=True, slow=True) == LOADS[True] * LOAD_MINUTES * SLOW_TIMES


def test_a_family_is_known_by_its_record_and_a_new_one_by_everybodys() -> None:
    forecast = Forecast([*record("tiles", 5, 1), *record("cache", 0, 6)])
    assert forecast.chance("cache") < forecast.chance("unheard") < forecast.chance("tiles")
    poor = Forecast(record("cache", 0, 12))
    assert poor.chance("unheard") < 0.2


def test_one_familys_luck_says_less_where_families_are_alike() -> None:
    alike = [one for k in range(8) for one in record(f"f{k}", 1, 3)]
    apart = [one for k in range(4) for one in (*record(f"w{k}", 4, 0), *record(f"l{k}", 0, 4))]
    fresh = record("new", 2, 0)
    lifted = [Forecast([*others, *fresh]) for others in (alike, apart)]
    rises = [f.chance("new") - f.chance("unheard") for f in lifted]
    assert rises[1] > 2 * rises[0]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=30),
    st.sampled_from("abcd"),
)
def test_a_win_never_lowers_and_a_loss_never_raises_a_familys_odds(
    history: list[tuple[str, bool]], family: str
) -> None:
    known = [past(name, gain=0.01 if won else None) for name, won in history]
    now = Forecast(known).chance(family)
    assert 0 < now < 1
    assert Forecast([*known, past(family, gain=0.01)]).chance(family) >= now - 1e-12
    assert Forecast([*known, past(family)]).chance(family) <= now + 1e-12


def test_estimates_are_scaled_by_how_earlier_ones_did() -> None:
    half = log_gain(0.02) / 2
    forecast = Forecast([past("tiles", gain=half)] * 6)
    assert 0.5 < forecast.scale("tiles", 0.02) < 0.65
    assert forecast.scale("tiles", 0.02) < forecast.scale("unheard", 0.02) < 1.0
    told = forecast.priority(Idea("tiles", 0.04))
    assert told.gain == pytest.approx(0.04 * told.scale, rel=0.02)
    assert "(predicted x 0.5" in told.sentence
    assert "its family won 6 of 6" in told.sentence


def test_no_single_slip_of_the_pen_rules_a_family() -> None:
    forecast = Forecast([past("tiles", gain=0.2, predicted=1e-6)])
    assert forecast.scale("tiles", 1e-6) <= 8.0
    assert Forecast([past("tiles", gain=0.02, predicted=0.0)]).scale("tiles", 0.02) == 1.0


def test_where_large_estimates_were_the_most_overstated_they_are_scaled_down_most() -> None:
    sizes = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16)
    guesses = [past("tiles", gain=0.02, predicted=size) for size in sizes] * 4
    wild, right = Forecast(guesses), Forecast(
        [past("tiles", gain=log_gain(size), predicted=size) for size in sizes]
    )
    scales = [wild.scale("tiles", size) for size in sizes]
    assert scales == sorted(scales, reverse=True)
    assert scales[0] > 2 * scales[-1]
    assert [right.scale("tiles", size) for size in sizes] == pytest.approx([1.0] * len(sizes))
    gains = [wild.priority(Idea("tiles", size)).gain for size in sizes]
    assert gains == sorted(gains)


@given(
    st.lists(st.tuples(st.floats(1e-6, 0.9), st.floats(1e-6, 2.0)), max_size=12),
    st.floats(1e-6, 0.9),
    st.floats(1.0, 20.0),
)
def test_of_two_levers_of_a_family_the_larger_estimate_never_promises_less(
    won: list[tuple[float, float]], predicted: float, times: float
) -> None:
    forecast = Forecast([past("tiles", gain=gain, predicted=said) for said, gain in won])
    larger = min(0.99, predicted * times)
    small, large = (forecast.priority(Idea("tiles", said)).gain for said in (predicted, larger))
    assert large >= small * (1 - 1e-9)


def test_no_gain_is_expected_above_a_ceiling() -> None:
    told = Forecast(()).priority(Idea("tiles", 0.05, ceiling=0.01))
    assert told.gain == 0.01


def test_a_lever_for_part_of_the_traffic_is_worth_that_part() -> None:
    forecast = Forecast(())
    whole, part = (forecast.priority(Idea("tiles", 0.05, share=s)) for s in (1.0, 0.25))
    assert part.value == pytest.approx(whole.value / 4)
    assert "x 25 % of traffic" in part.sentence
    assert "of traffic" not in whole.sentence


def test_minutes_are_the_familys_own_pace_times_the_loads_that_its_kind_took() -> None:
    quick = [past("tiles", loads=2, load_minutes=(1.0, 1.0))] * 4
    long = [past("build", loads=2, load_minutes=(9.0, 9.0))] * 2
    forecast = Forecast([*quick, *long])
    loads = (LOADS[True] * 4 + 6 * 2) / 10
    assert forecast.minutes("tiles", hot=True, slow=False) == pytest.approx(loads)
    assert forecast.minutes("build", hot=True, slow=True) == pytest.approx(loads * 9)
    assert forecast.minutes("unheard", hot=False, slow=False) == LOADS[False]
    assert Forecast(quick, 3.0).minutes("unheard", hot=False, slow=False) == LOADS[False] * 3


def test_the_value_is_the_product_of_the_terms_that_the_sentence_names() -> None:
    told = Forecast(()).priority(Idea("tiles", 0.04, share=0.5, discount=0.5))
    product = told.chance * log_gain(0.04) * 0.5 / told.minutes
    assert math.isclose(told.value, product)
    assert told.sentence == "P(win) 0.17 x 4 % x 50 % of traffic / 6 min"
