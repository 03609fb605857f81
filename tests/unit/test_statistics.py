"""The method's promises, simulated with fixed seeds through the real decision code.

Blocks are simulated, not logs, so that hundreds of levers take seconds. Each test states the
promise that it checks; error rates are compared with an exact binomial bound.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from statistics import fmean

import pytest

from flywheel.statistics.band import Pool, Series, effect_band, log_gain, pool
from flywheel.statistics.block import BlockEstimate
from flywheel.statistics.campaign import Budget, Settings, clopper_pearson
from flywheel.statistics.decide import Evidence, Rule, decide

SD = 0.004
RULE = Rule()
Noise = Callable[[random.Random], float]


def gauss(dice: random.Random) -> float:
    return dice.gauss(0, SD)


def heavy(dice: random.Random) -> float:
    """Student's t with 3 degrees of freedom, scaled to the same sd."""
    chi = sum(dice.gauss(0, 1) ** 2 for _ in range(3)) / 3
    return SD / math.sqrt(3) * dice.gauss(0, 1) / math.sqrt(chi)


def outliers(dice: random.Random) -> float:
    """Two per cent of the loads are bad, 2 to 8 % off, in the favour of either arm."""
    bad = dice.random() < 0.02
    return gauss(dice) + (dice.choice((-1, 1)) * dice.uniform(0.02, 0.08) if bad else 0.0)


def estimate(effect: float) -> BlockEstimate:
    return BlockEstimate(effect, None, 0.0, 4, math.log(10), "ms_per_token")


def campaign(
    effects: list[float], noise: Noise, seed: int, settings: Settings
) -> list[tuple[str, int]]:
    """Endings and blocks of these levers in one campaign: 4 nulls, then each until decided."""
    dice = random.Random(seed)
    history = [Series(tuple(noise(dice) for _ in range(4)), 0, null=True)]
    serial, budget, out = 4, Budget(settings), []
    for effect in effects:
        past, blocks = pool(history), []
        while True:
            blocks.append(estimate(effect + noise(dice)))
            made = decide(Evidence(tuple(blocks), past, budget.alpha_t), settings.rule)
            if made.ending is not None:
                break
        out.append((made.ending, len(blocks)))
        history.append(Series(tuple(b.effect for b in blocks), serial))
        serial += len(blocks)
        budget = budget.after(made.ending == "promoted")
    return out


@pytest.mark.parametrize("noise", [gauss, heavy, outliers])
def test_null_campaigns_promote_less_than_alpha(noise: Noise) -> None:
    """All levers null: the share of campaigns with any promotion stays under alpha."""
    settings, campaigns = Settings(label="quick", budget=16), 200
    any_false = sum(
        any(e == "promoted" for e, _ in campaign([0.0] * 16, noise, seed, settings))
        for seed in range(campaigns)
    )
    assert clopper_pearson(any_false, campaigns, 0.9)[0] < settings.alpha
    assert any_false / campaigns <= settings.alpha / 2


def test_levers_exactly_at_the_bar_are_the_worst_null() -> None:
    settings = Settings(label="quick", budget=16)
    at_bar = -log_gain(RULE.delta_min)
    any_false = sum(
        any(e == "promoted" for e, _ in campaign([at_bar] * 16, gauss, 1000 + s, settings))
        for s in range(40)
    )
    assert clopper_pearson(any_false, 40, 0.9)[0] < settings.alpha


def test_power_grows_with_the_gain() -> None:
    """At a between-load sd of 0.4 % a gain of 2 % is found nearly always, 0.5 % nearly never."""
    settings = Settings(label="quick", budget=16)
    power = {}
    for gain in (0.005, 0.01, 0.02, 0.03):
        effects = [-log_gain(gain) if i % 4 == 0 else 0.0 for i in range(16)]
        hits = [
            ending == "promoted"
            for seed in range(12)
            for (ending, _), e in zip(
                campaign(effects, gauss, 2000 + seed, settings), effects, strict=True
            )
            if e
        ]
        power[gain] = fmean(hits)
    assert power[0.005] < 0.05
    assert power[0.01] < power[0.02] <= power[0.03]
    assert power[0.02] > 0.8
    assert power[0.03] > 0.95


def test_nulls_are_closed_cheaply_on_a_quiet_box() -> None:
    settings = Settings(label="quick", budget=16)
    made = [x for s in range(10) for x in campaign([0.0] * 16, gauss, 3000 + s, settings)]
    assert fmean(blocks for _, blocks in made) < 4
    assert fmean(ending == "rejected" for ending, _ in made) > 0.9


def test_a_noisy_box_yields_inconclusive_and_not_promotions() -> None:
    settings = Settings(label="quick", budget=16)
    noise: Noise = lambda dice: dice.gauss(0, 0.03)  # noqa: E731
    made = [x for s in range(6) for x in campaign([0.0] * 16, noise, 4000 + s, settings)]
    assert sum(ending == "promoted" for ending, _ in made) == 0
    assert fmean(ending == "inconclusive" for ending, _ in made) > 0.5


def test_the_band_covers_at_every_look() -> None:
    """Looking after each of 8 blocks, the true effect stays inside in at least 95 % of levers."""
    dice, missed, trials = random.Random(5), 0, 400
    past = Pool(1.0, 30.0)
    for _ in range(trials):
        effects: list[float] = []
        out = False
        for _ in range(8):
            effects.append(dice.gauss(0, 1))
            band = effect_band(effects, past)
            out = out or not band.low <= 0 <= band.high
        missed += out
    assert missed / trials < 0.05


def test_abba_takes_linear_drift_out_where_aabb_would_promote_it() -> None:
    """Drift of 0.3 % per slot, no true effect: the palindrome's estimate carries none of it."""
    dice, settings = random.Random(6), Settings(label="quick", budget=16)

    def block_effect(order: str) -> float:
        y = [0.003 * i + dice.gauss(0, 0.001) for i in range(4)]
        b = [v for v, arm in zip(y, order, strict=True) if arm == "B"]
        a = [v for v, arm in zip(y, order, strict=True) if arm == "A"]
        return fmean(b) - fmean(a)

    def endings(order: str) -> list[str]:
        out = []
        past = Pool(0.0012**2, 30.0)
        for _ in range(20):
            blocks = []
            while True:
                blocks.append(estimate(block_effect(order)))
                made = decide(Evidence(tuple(blocks), past, 0.0125), settings.rule)
                if made.ending:
                    break
            out.append(made.ending)
        return out

    assert endings("ABBA").count("promoted") == 0
    assert endings("BBAA").count("promoted") > 0


def test_units_do_not_change_a_decision() -> None:
    """tok/s is the reciprocal of s/token: its log effect is the same number with another sign."""
    ms = [(10.0, 9.71), (10.2, 9.9), (9.9, 9.6)]
    in_ms = [math.log(b / a) for a, b in ms]
    in_tok_s = [-math.log((1e3 / b) / (1e3 / a)) for a, b in ms]
    verdicts = [
        decide(Evidence(tuple(map(estimate, effects)), Pool(SD**2, 20.0), 0.0125), RULE)
        for effects in (in_ms, in_tok_s)
    ]
    assert verdicts[0].ending == verdicts[1].ending
    assert verdicts[0].e_value == pytest.approx(verdicts[1].e_value, rel=1e-9)


def test_shared_luck_of_a_box_that_canaries_see_lowers_confidence() -> None:
    """Nulls that spread twice as wide as levers do make every e-value smaller."""
    quiet = [Series(tuple(random.Random(i).gauss(0, SD) for _ in range(3)), 3 * i)
             for i in range(10)]
    calm = pool([*quiet, Series((SD, -SD, SD, -SD), 30, null=True)])
    loud = pool([*quiet, Series((5 * SD, -5 * SD, 5 * SD, -5 * SD), 30, null=True)])
    blocks = tuple(estimate(-0.02 + x) for x in (0.0, 0.001, -0.001))
    assert (
        decide(Evidence(blocks, loud, 0.0125), RULE).e_value
        < decide(Evidence(blocks, calm, 0.0125), RULE).e_value
    )
