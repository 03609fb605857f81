"""What each ending needs, and what can only withhold a promotion."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from flywheel.errors import DecisionError, StatisticsError
from flywheel.statistics.band import Pool, gain_fraction, log_gain
from flywheel.statistics.block import BlockEstimate
from flywheel.statistics.decide import Evidence, Rule, Verdict, decide, detectable, percent, span

RULE = Rule()
SD = 0.003
PAST = Pool(SD * SD, 30.0)
ALPHA_T = 0.2 / 16


def block(gain: float, **more: object) -> BlockEstimate:
    """A hot block in which the candidate saves this log gain."""
    fields: dict[str, object] = {
        "effect": -gain, "contrast": None, "within_sd": 0.001, "prompts": 4,
        "level_log_ms": math.log(10), "metric": "ms_per_token", **more,
    }
    return BlockEstimate(**fields)  # type: ignore[arg-type]


def verdict(*gains: float, rule: Rule = RULE, **more: object) -> Verdict:
    """The verdict after blocks of these gains."""
    fields: dict[str, object] = {
        "blocks": tuple(block(g) for g in gains), "past": PAST, "alpha_t": ALPHA_T, **more,
    }
    return decide(Evidence(**fields), rule)  # type: ignore[arg-type]


def test_a_clear_gain_is_promoted_after_two_loads_and_never_after_one() -> None:
    assert verdict(0.05).ending is None
    made = verdict(0.05, 0.052)
    assert (made.ending, made.n) == ("promoted", 2)
    assert made.e_value >= 1 / ALPHA_T
    assert made.band is not None
    assert made.band.low > log_gain(RULE.delta_min)
    assert 0 < made.shrunk_gain < gain_fraction(0.051)


def test_a_gain_under_the_bar_is_not_worth_a_promotion_however_sure() -> None:
    quiet = Pool(1e-8, 30.0)
    made = verdict(0.003, 0.0031, past=quiet)
    assert (made.ending, made.code) == ("rejected", "bounded")
    assert made.worth_less_than < RULE.delta_min


def test_what_the_nulls_are_off_zero_is_no_gain() -> None:
    """A bias that repeats survives every average, so it raises the bar, not the spread."""
    gains = (0.0079, 0.0081, 0.008)
    biased = replace(PAST, variance=1e-8, bias=0.004)
    assert verdict(*gains, past=replace(biased, bias=0.0)).ending == "promoted"
    made = verdict(*gains, past=biased)
    assert (made.ending, made.code) == ("rejected", "bounded")
    assert verdict(*[g + 0.004 for g in gains], past=biased).ending == "promoted"
    fixed = replace(biased, bias=0.02)
    assert fixed.bias > RULE.most_bias
    assert verdict(*gains, past=fixed).ending == "promoted"
    older = verdict(*gains, past=biased, rule=replace(RULE, version="e2, own"))
    assert older.ending == "promoted"


def test_without_budget_nothing_is_promoted() -> None:
    made = verdict(*[0.05] * 8, alpha_t=0.0)
    assert made.ending == "inconclusive"
    assert made.detectable is None
    assert made.sentence == "could see nothing"
    assert "infinity" in verdict(0.05, 0.05, alpha_t=0.0).sentence


def test_futility_closes_only_under_a_useful_bar() -> None:
    quiet = verdict(0.001, 0.0011, past=Pool(0.002**2, 30.0))
    assert (quiet.ending, quiet.code) == ("rejected", "futile")
    assert quiet.worth_less_than < RULE.useful
    noisy = verdict(0.001, 0.0012, past=Pool(0.02**2, 30.0))
    assert noisy.ending is None


def test_a_worse_lever_is_rejected_with_its_bound() -> None:
    made = verdict(-0.03, -0.031)
    assert (made.ending, made.code) == ("rejected", "bounded")
    assert made.worth_less_than < 0
    assert verdict(-0.03).ending is None


def test_at_the_last_block_it_is_inconclusive_and_says_what_it_could_have_seen() -> None:
    loud = Pool(0.02**2, 30.0)
    gains = [0.012, 0.03, -0.02, 0.014, 0.0, 0.02, 0.001, 0.02]
    assert verdict(*gains[:7], past=loud).ending is None
    made = verdict(*gains, past=loud)
    assert (made.ending, made.code) == ("inconclusive", "budget")
    assert made.detectable > 0.02
    assert f"{made.detectable * 100:.1f} %" in made.sentence


def test_the_detectable_effect_shrinks_with_blocks() -> None:
    bar = log_gain(RULE.delta_min)
    sizes = [detectable(n, SD * SD, 30.0, ALPHA_T, bar) for n in (2, 4, 8)]
    assert sizes == sorted(sizes, reverse=True)
    assert detectable(2, math.inf, 30.0, ALPHA_T, bar) is None


def test_one_load_must_not_carry_a_promotion() -> None:
    past = Pool(1e-6, 30.0)
    made = verdict(0.2, -0.001, past=past, rule=replace(RULE, n_max=2))
    assert made.ending != "promoted"


def test_leave_one_out_withholds() -> None:
    from flywheel.statistics.decide import withheld

    assert withheld([0.2, -0.01], (), PAST, RULE) == "one_load"
    assert withheld([0.02, 0.02], (), PAST, RULE) is None
    assert withheld([0.02, 0.021], (), Pool(0.0009, 30.0), RULE) == "spread"


def test_an_unstable_lever_uses_its_own_spread_and_says_so() -> None:
    made = verdict(0.2, 0.01, 0.1)
    assert made.unstable
    assert made.ending != "promoted"


def with_categories(*pairs: tuple[float, float]) -> tuple[BlockEstimate, ...]:
    return tuple(
        block((a + b) / 2, categories=(("chat", -a), ("code", -b))) for a, b in pairs
    )


def test_a_regression_in_one_category_is_named_though_the_whole_gains() -> None:
    blocks = with_categories((-0.06, 0.2), (-0.061, 0.2))
    guards = {"chat": PAST, "code": PAST}
    made = verdict(blocks=blocks, guards=guards)
    assert (made.ending, made.code) == ("rejected", "regression")
    assert made.regressions == ("chat",)
    assert made.sentence.startswith("regression in chat")


def test_a_category_that_could_hide_a_loss_withholds_the_promotion() -> None:
    guards = {"chat": Pool(0.05**2, 30.0), "code": PAST}
    made = verdict(blocks=with_categories((0.05, 0.05), (0.05, 0.051)), guards=guards)
    assert (made.ending, made.code) == (None, "guard")
    eight = with_categories(*[(0.01, 0.06 + i / 1e4) for i in range(8)])
    made = verdict(blocks=eight, guards=guards)
    assert (made.ending, made.code) == ("inconclusive", "guard")
    fine = {"chat": PAST, "code": PAST, "absent": PAST}
    assert verdict(blocks=eight, guards=fine).ending == "promoted"


def test_arms_that_differ_by_far_less_than_noise_are_one_arm() -> None:
    made = verdict(1e-9)
    assert (made.ending, made.code) == ("void", "arms_probably_identical")
    assert verdict(0.0, 0.0, past=Pool(0.0, 0.0)).code == "arms_probably_identical"
    assert verdict(0.002).ending is None


def test_equal_tau_is_no_reason_to_doubt_the_arms() -> None:
    blocks = (block(0.0, metric="tau"), block(0.0, metric="tau"))
    assert verdict(blocks=blocks).code != "arms_probably_identical"


def test_faster_than_the_floor_or_its_ceiling_is_quarantined() -> None:
    assert verdict(0.5, floor_ms=9.0).code == "faster_than_floor"
    assert verdict(0.05, 0.05, floor_ms=9.0).ending == "promoted"
    made = verdict(0.3, 0.3, ceiling=0.05)
    assert (made.ending, made.code) == ("void", "above_ceiling")
    assert verdict(0.05, 0.05, ceiling=0.06).ending == "promoted"


def test_bad_input_raises_and_never_promotes() -> None:
    with pytest.raises(DecisionError, match="different"):
        verdict(blocks=(block(0.1), block(0.1, loads=4)))
    with pytest.raises(StatisticsError):
        verdict(0.1, math.nan)
    assert verdict(blocks=()).ending is None
    for bad in ({"delta_min": 0.0}, {"useful": 0.001}, {"n_min": 1}, {"n_max": 1}, {"guard": 0.0},
                {"n_max": 1001}, {"alpha_band": 0.0}, {"alpha_band": 1.0}, {"alpha_band": math.nan},
                {"futility_t": math.nan}, {"futility_t": -math.inf}):  # fmt: skip
        with pytest.raises(DecisionError):
            Rule(**bad)


gains_of_a_lever = st.lists(
    st.floats(-0.1, 0.1, allow_subnormal=False), min_size=2, max_size=8
)


@given(gains_of_a_lever.flatmap(lambda g: st.tuples(st.just(g), st.permutations(g))))
def test_the_order_of_blocks_changes_no_bit_of_a_verdict(
    gains: tuple[list[float], list[float]]
) -> None:
    made, wanted = (
        verdict(
            blocks=tuple(block(g, categories=(("code", -g / 3),), guards=(("tau", g / 7),))
                         for g in order),
            guards={"code": PAST}, metrics={"tau": PAST}, rule=replace(RULE, tau=0.02),
        )
        for order in gains
    )
    # NaN is nobody's equal, so the text is compared; repr keeps every bit.
    assert repr(made) == repr(wanted)


def test_a_guarded_metric_that_falls_is_a_regression_and_a_traded_one_is_not() -> None:
    rule = replace(RULE, tau=0.02, memory=0.05)
    blocks = tuple(block(0.05, guards=(("memory", 0.0), ("tau", 0.1))) for _ in range(2))
    exact = Pool(1e-10, 30.0)
    made = verdict(blocks=blocks, metrics={"tau": exact, "memory": exact}, rule=rule)
    assert (made.ending, made.code, made.regressions) == ("rejected", "regression", ("tau",))
    assert verdict(blocks=blocks, metrics={"memory": exact}, rule=rule).ending == "promoted"
    assert verdict(blocks=blocks, metrics={"tau": exact}, rule=RULE).ending == "promoted"


def test_a_metric_that_never_moved_guards_without_withholding() -> None:
    rule = replace(RULE, tau=0.02)
    blocks = (block(0.05, guards=(("tau", 0.0),)), block(0.051, guards=(("tau", 0.0),)))
    still = Pool(0.0, 4.0)
    assert verdict(blocks=blocks, metrics={"tau": still}, rule=rule).ending == "promoted"
    unknown = verdict(blocks=blocks, metrics={"tau": Pool(0.0, 0.0)}, rule=rule)
    assert (unknown.ending, unknown.code) == (None, "guard")


def test_a_losing_cold_lever_is_closed_at_once_and_a_hot_one_once_it_is_bounded() -> None:
    loud = Pool(0.02**2, 30.0)
    hot = verdict(0.001, 0.0012, past=loud)
    cold = verdict(blocks=(block(0.001, loads=4), block(0.0012, loads=4)), past=loud)
    assert hot.ending is None
    assert (cold.ending, cold.code) == ("rejected", "futile")
    assert cold.worth_less_than > RULE.useful


def test_a_verdict_without_a_band_claims_nothing() -> None:
    made = Verdict("void", "x", "y", 0, None, 0.0, 0.0)
    assert made.worth_less_than is None
    assert made.shrunk_gain is None
    first = verdict(0.05, past=Pool(0.0, 0.0))
    assert first.worth_less_than is None
    assert span(first.band) == "?, ?"
    assert percent(math.inf) == "anything"
