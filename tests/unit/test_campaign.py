"""e-LOND spends a declared budget; canaries are counted exactly."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st
from online_fdr.core.abstract.abstract_gamma_seq import AbstractGammaSequence
from online_fdr.e_values import ELond

from flywheel.errors import DecisionError
from flywheel.statistics.campaign import (
    FULL,
    QUICK,
    Budget,
    Canaries,
    Settings,
    clopper_pearson,
    fold,
)


def test_the_first_test_gets_the_flat_share_and_promotions_earn_more() -> None:
    assert Budget(FULL).alpha_t == pytest.approx(0.2 / 150)
    after = fold(QUICK, [True, False, True])
    assert (after.tests, after.promotions, after.left) == (3, 2, 13)
    assert after.alpha_t == pytest.approx(0.2 / 16 * 3)


def test_a_spent_epoch_grants_nothing() -> None:
    spent = fold(QUICK, [False] * 16)
    assert (spent.left, spent.alpha_t) == (0, 0.0)
    assert spent.after(False).left == 0


def test_alpha_never_exceeds_one() -> None:
    assert fold(Settings(alpha=0.9, budget=2), [True]).alpha_t <= 1.0


def test_e_lond_holds_the_false_discovery_rate() -> None:
    """Half the tests are null with the sharpest e-value that a null allows: 1/p with odds p."""
    dice = random.Random(4)
    shares = []
    for _ in range(300):
        budget, false = Budget(Settings(budget=40)), 0
        for i in range(40):
            null = i % 2 == 0
            a = budget.alpha_t
            hit = dice.random() < a if null else dice.random() < 0.7
            false += null and hit
            budget = budget.after(hit)
        shares.append(false / max(1, budget.promotions))
    assert sum(shares) / len(shares) < 0.2


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    [(0, 14, 0.0, 0.2316), (1, 20, 0.0013, 0.2487), (5, 5, 0.4782, 1.0), (0, 0, 0.0, 1.0)],
)
def test_the_exact_binomial_interval(hits: int, trials: int, low: float, high: float) -> None:
    assert clopper_pearson(hits, trials) == pytest.approx((low, high), abs=1e-4)


def test_canaries_state_their_upper_bound() -> None:
    assert Canaries(0, 14).upper == pytest.approx(0.2316, abs=1e-4)
    with pytest.raises(DecisionError):
        clopper_pearson(3, 2)


def test_settings_survive_json_and_refuse_nonsense() -> None:
    assert Settings.from_dict(QUICK.as_dict()) == QUICK
    for bad in ({"alpha": 0.0}, {"budget": 0}, {"canary_every": 0}):
        with pytest.raises(DecisionError):
            Settings(**bad)


@given(
    st.lists(st.floats(0.0, 1e6), min_size=1, max_size=60),
    st.integers(1, 40),
    st.floats(0.01, 0.5),
)
def test_every_level_and_rejection_is_that_of_another_implementation(
    e_values: list[float], budget: int, alpha: float
) -> None:
    """The e-LOND of online-fdr, with the same flat weights, on any sequence of e-values."""

    class Flat(AbstractGammaSequence):  # type: ignore[misc]
        def calc_gamma(self, j: int, *args: object, **kwargs: object) -> float:
            return 1 / budget if j <= budget else 0.0

    ours, theirs = Budget(Settings(alpha=alpha, budget=budget)), ELond(alpha, Flat(alpha))
    for e in e_values:
        level = ours.alpha_t
        promoted = level > 0 and e >= 1 / level
        assert theirs.test_one(e) == promoted
        assert level == pytest.approx(theirs.last_test_level)
        ours = ours.after(promoted)
