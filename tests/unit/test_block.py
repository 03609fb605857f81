"""One load is one sample: blocks reduce runs to a single effect."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st
from records import PROMPTS, point, record

from flywheel.errors import BlockError
from flywheel.run.record import Point, RunRecord
from flywheel.statistics.block import BlockEstimate, cold_block, cost, hot_block, load_costs


def bend(made: RunRecord, change: object, **where: object) -> RunRecord:
    """The record with some points changed."""
    def one(p: Point) -> Point:
        hit = all(getattr(p, k) == v for k, v in where.items())
        return replace(p, **change) if hit else p  # type: ignore[arg-type]
    return replace(made, points=tuple(one(p) for p in made.points))


def cold(times: str, ms: list[float]) -> list[RunRecord]:
    """Four loads at these times, arms as in the pattern."""
    return [
        record(f"r{i}", arms={arm: {} if arm == "A" else {"threads": 2}}, order=arm * 2,
               ms={arm: value})
        for i, (arm, value) in enumerate(zip(times, ms, strict=True))
    ]


def test_a_hot_effect_is_the_log_ratio_of_the_arms() -> None:
    made = hot_block(record(ms={"A": 10.0, "B": 9.0}))
    assert made.effect == pytest.approx(math.log(0.9), abs=1e-7)
    assert made.gain == -made.effect
    assert made.level_log_ms == pytest.approx(math.log(10))
    assert (made.prompts, made.loads, made.contrast, made.hot) == (4, 1, None, True)
    assert dict(made.categories)["code"] == pytest.approx(math.log(0.9), abs=1e-7)


def test_linear_drift_within_a_load_does_not_pass_as_an_effect() -> None:
    for order in ("ABBA", "BAAB"):
        drifting = record(order=order, ms=lambda _arm, _cat, place: 10 * math.exp(0.05 * place))
        assert hot_block(drifting).effect == pytest.approx(0, abs=1e-7)


def test_drift_would_pass_in_an_order_that_is_no_palindrome_so_that_is_refused() -> None:
    with pytest.raises(BlockError, match="palindrome"):
        hot_block(record(order="AABB"))
    with pytest.raises(BlockError, match="palindrome"):
        hot_block(record(arms={"A": {}}, order="AA", ms={"A": 1.0}))


def test_repeats_inside_a_load_never_increase_n() -> None:
    few = hot_block(record(order="ABBA"))
    many = hot_block(record(order="ABBAABBAABBA"))
    assert isinstance(many, BlockEstimate)
    assert few.loads == many.loads == 1
    assert few.effect == pytest.approx(many.effect, abs=1e-9)


def test_the_effect_does_not_depend_on_the_unit_or_the_order_of_prompts() -> None:
    ms = {"A": 10.0, "B": 9.5}
    plain = hot_block(record(ms=ms)).effect
    slow = hot_block(record(ms={k: 1000 * v for k, v in ms.items()})).effect
    turned = hot_block(record(ms=ms, prompts=tuple(reversed(PROMPTS)))).effect
    assert plain == pytest.approx(slow, abs=1e-7) == pytest.approx(turned, abs=1e-12)


def test_unequal_tokens_do_not_compare() -> None:
    with pytest.raises(BlockError, match="equal tokens"):
        hot_block(bend(record(), {"tokens": 20}, arm="B", prompt="code-0"))
    with pytest.raises(BlockError, match="repeats of arm B differ"):
        hot_block(bend(record(), {"tokens": 20}, arm="B", prompt="code-0", repeat=1))


def test_excluded_prompts_do_not_count() -> None:
    loop = {"counted": False, "excluded": "loop"}
    made = hot_block(bend(record(), loop, prompt="code-0"))
    assert made.prompts == 3
    with pytest.raises(BlockError, match="same prompts: code-0"):
        hot_block(bend(record(), loop, prompt="code-0", arm="A"))
    with pytest.raises(BlockError, match="no prompt counts"):
        hot_block(bend(record(), loop))


@pytest.mark.parametrize(
    "bad", [{"tokens": 1}, {"decode_ns": 0}, {"rounds": 0}, {"finite": False}]
)
def test_nothing_is_no_measurement(bad: dict[str, object]) -> None:
    with pytest.raises(BlockError, match="no measurement"):
        cost(point("A", "p", "c", 0, 10.0, **bad), "ms_per_token")


def test_tau_is_judged_as_forwards_per_token() -> None:
    better = bend(record(ms={"A": 10.0, "B": 10.0}), {"rounds": 12}, arm="B")
    made = hot_block(better, "tau")
    assert made.effect == pytest.approx(math.log(12 / 16))
    with pytest.raises(BlockError, match="unknown metric"):
        hot_block(record(), "watts")


def test_within_sd_sees_repeats_and_prompt_sd_sees_prompts() -> None:
    quiet = hot_block(record())
    assert quiet.within_sd == pytest.approx(0, abs=1e-7)
    noisy = hot_block(record(ms=lambda arm, cat, place: 10 + 0.3 * place))
    assert noisy.within_sd > 1e-3
    mixed = hot_block(record(ms=lambda arm, cat, place: 9 if (arm, cat) == ("B", "code") else 10))
    assert mixed.prompt_sd > 1e-2


def test_a_cold_block_is_free_of_level_and_linear_drift() -> None:
    for pattern, sign in (("ABBA", 1), ("BAAB", 1)):
        ms = [
            10 * math.exp(0.02 * i + (sign * -0.05 if arm == "B" else 0))
            for i, arm in enumerate(pattern)
        ]
        made = cold_block(cold(pattern, ms))
        assert made.effect == pytest.approx(-0.05, abs=1e-7)
        assert made.contrast == pytest.approx(0, abs=1e-7)
        assert (made.loads, made.hot) == (4, False)


@given(st.lists(st.floats(5, 20), min_size=4, max_size=4), st.floats(-0.2, 0.2))
def test_the_contrast_is_free_of_the_treatment(ms: list[float], effect: float) -> None:
    treated = [m * math.exp(effect) if arm == "B" else m for m, arm in zip(ms, "ABBA", strict=True)]
    plain, moved = cold_block(cold("ABBA", ms)), cold_block(cold("ABBA", treated))
    assert moved.contrast == pytest.approx(plain.contrast, abs=1e-6)
    assert moved.effect - plain.effect == pytest.approx(effect, abs=1e-6)


def test_other_loads_are_no_cold_block() -> None:
    with pytest.raises(BlockError, match="ABBA or BAAB"):
        cold_block(cold("ABBA", [10.0] * 4)[:3])
    with pytest.raises(BlockError, match="ABAB"):
        cold_block(cold("ABAB", [10.0] * 4))
    with pytest.raises(BlockError):
        cold_block([record()] * 4)


repeats = st.lists(st.integers(10**6, 10**12), min_size=2, max_size=2)


@given(st.lists(st.tuples(repeats, repeats), min_size=1, max_size=5), st.randoms())
def test_neither_unit_nor_order_changes_a_bit_of_an_estimate(
    times: list[tuple[list[int], list[int]]], dice: object
) -> None:
    """Time per token or tokens per second; prompts and repeats in any order."""
    prompts = [(f"p{i}", "code" if i % 2 else "chat") for i in range(len(times))]
    made = record(prompts=prompts)
    points = tuple(
        replace(p, decode_ns=times[int(p.prompt[1:])][p.arm == "B"][p.repeat]) for p in made.points
    )
    in_ms = hot_block(replace(made, points=points))
    shuffled = list(points)
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    in_rates = hot_block(replace(made, points=tuple(shuffled)), "tok_per_s")
    assert repr(replace(in_rates, metric="ms_per_token")) == repr(in_ms)


@given(st.lists(st.integers(10**6, 10**12), min_size=4, max_size=4))
def test_a_cold_estimate_is_the_same_in_either_unit(times: list[int]) -> None:
    loads = [bend(r, {"decode_ns": ns})
             for r, ns in zip(cold("ABBA", [1.0] * 4), times, strict=True)]
    in_ms, in_rates = cold_block(loads), cold_block(loads, "tok_per_s")
    assert repr(replace(in_rates, metric="ms_per_token")) == repr(in_ms)
    assert load_costs(loads) == load_costs(loads, "tok_per_s")


def test_guards_hold_tau_and_the_memory_of_cold_loads() -> None:
    hot = hot_block(bend(record(), {"rounds": 32}, arm="B"))
    assert dict(hot.guards) == {"tau": pytest.approx(math.log(2))}
    loads = [
        replace(r, peak_rss_bytes=2 * 10**9) if "B" in r.header.plan.arms else r
        for r in cold("ABBA", [10.0] * 4)
    ]
    assert dict(cold_block(loads).guards) == {"memory": pytest.approx(math.log(2)), "tau": 0.0}
    assert hot_block(record(), "tau").guards == ()


def test_a_load_of_two_arms_has_no_single_cost() -> None:
    with pytest.raises(BlockError, match="more than one arm"):
        load_costs([record()])


def test_estimates_agree_up_to_rounding_and_no_further() -> None:
    made = hot_block(record())
    assert made.agrees(replace(made, effect=made.effect * (1 + 1e-12), guards=()))
    assert not made.agrees(replace(made, effect=made.effect * 1.001))
    assert not made.agrees(replace(made, categories=()))
    assert not made.agrees(replace(made, metric="tau"))
