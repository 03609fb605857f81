"""Filters and draws against straightforward code of another kind."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy import stats

from engine.errors import ConfigError
from engine.sampling import Sampler, Sampling, filtered


def by_hand(logits: list[float], s: Sampling) -> list[float]:
    """Probabilities after temperature, top-k, top-p and min-p, on plain lists."""
    scaled = [v / s.temperature for v in logits]
    peak = max(scaled)
    p = {i: math.exp(v - peak) for i, v in enumerate(scaled)}

    def normalise(kept: dict[int, float]) -> dict[int, float]:
        total = sum(kept.values())
        return {i: v / total for i, v in kept.items()}

    p = normalise(p)
    if s.top_k:
        p = normalise(dict(sorted(p.items(), key=lambda item: -item[1])[: s.top_k]))
    if s.top_p < 1:
        kept, mass = {}, 0.0
        for i, v in sorted(p.items(), key=lambda item: -item[1]):
            if mass >= s.top_p:
                break
            kept[i] = v
            mass += v
        p = normalise(kept)
    if s.min_p:
        p = normalise({i: v for i, v in p.items() if v >= s.min_p * max(p.values())})
    return [p.get(i, 0.0) for i in range(len(logits))]


# Logits a thousandth apart at least: what ties do is another test's business.
LOGITS = st.lists(st.integers(-9000, 9000), min_size=2, max_size=24, unique=True).map(
    lambda whole: [v / 1000 for v in whole]
)


@settings(max_examples=300, deadline=None)
@given(
    LOGITS,
    st.sampled_from([0.3, 0.7, 1.0, 2.5]),
    st.sampled_from([0, 1, 2, 5, 100]),
    st.sampled_from([0.05, 0.312345, 0.5, 0.912345, 1.0]),
    st.sampled_from([0.0, 0.0123456, 0.2, 1.0]),
)
def test_filters_keep_and_weigh_what_the_definition_does(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    chosen = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    got = filtered(torch.tensor(logits, dtype=torch.float64), chosen).exp().tolist()
    assert got == pytest.approx(by_hand(logits, chosen), abs=1e-9)


@pytest.mark.parametrize(
    "fields", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 1e-4}]
)
def test_the_likeliest_token_always_stays(fields: dict[str, Any]) -> None:
    logits = torch.tensor([0.1, 3.0, -2.0, 2.9])
    got = filtered(logits, Sampling(**({"temperature": 1.0} | fields))).exp()
    assert got.tolist() == pytest.approx([0, 1, 0, 0], abs=1e-6)


def test_no_filter_is_the_softmax() -> None:
    logits = torch.randn(50, generator=torch.Generator().manual_seed(1))
    got = filtered(logits, Sampling(temperature=0.8))
    torch.testing.assert_close(got, torch.log_softmax(logits.double() / 0.8, -1))


def test_draws_follow_the_filtered_distribution() -> None:
    logits = torch.randn(20, generator=torch.Generator().manual_seed(2)) * 1.5
    chosen = Sampling(temperature=1.0, top_k=12, top_p=0.97)
    p = filtered(logits, chosen).exp()
    seen = torch.zeros(20)
    draws = 6000
    for position in range(draws):
        seen[Sampler(Sampling(1.0, 0.97, 12, seed=77)).choose(logits, position)] += 1
    assert seen[p == 0].sum() == 0
    kept = p > 0
    result = stats.chisquare(seen[kept].numpy(), (p[kept] * draws).numpy() / p[kept].sum().item())
    assert result.pvalue > 1e-4


def test_draws_of_consecutive_seeds_are_independent() -> None:
    """Two seeds at one position, and one seed at two positions, agree only as often as chance."""
    logits = torch.zeros(16)
    draws = 3000
    samplers = [Sampler(Sampling(1.0, seed=seed)) for seed in range(draws + 1)]
    first = [s.choose(logits, 10) for s in samplers]
    by_seed = sum(a == b for a, b in zip(first, first[1:], strict=False))
    one = Sampler(Sampling(1.0, seed=123))
    along = [one.choose(logits, position) for position in range(draws + 1)]
    by_position = sum(a == b for a, b in zip(along, along[1:], strict=False))
    for agreed in (by_seed, by_position):
        assert stats.binomtest(agreed, draws, 1 / 16).pvalue > 1e-4
    table = [[0] * 16 for _ in range(16)]
    for a, b in zip(along, along[1:], strict=False):
        table[a][b] += 1
    assert stats.chi2_contingency(table).pvalue > 1e-4


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    logits = torch.randn(300, generator=torch.Generator().manual_seed(3))
    one, two = (Sampler(Sampling(1.3, seed=9)) for _ in range(2))
    forwards = [one.choose(logits, position) for position in range(40)]
    backwards = [two.choose(logits, position) for position in reversed(range(40))]
    assert forwards == backwards[::-1]
    assert len(set(forwards)) > 20


@pytest.mark.parametrize("seed", [0, 1, -1, 2**31, 2**40 + 3, 2**63 - 1])
def test_any_integer_seeds(seed: int) -> None:
    told = Sampler(Sampling(1.0, seed=seed)).choose(torch.zeros(64), 5)
    assert 0 <= told < 64


def test_seeds_that_differ_in_their_upper_half_draw_differently() -> None:
    logits = torch.zeros(1 << 16)
    low, high = (Sampler(Sampling(1.0, seed=s)) for s in (7, 7 + (1 << 32)))
    assert [low.choose(logits, p) for p in range(4)] != [high.choose(logits, p) for p in range(4)]


def test_greedy_takes_the_largest_and_the_first_of_equals() -> None:
    sampler = Sampler(Sampling())
    assert sampler.choose(torch.tensor([1.0, 5.0, 5.0, 2.0]), 0) == 1
    assert sampler.propose(torch.tensor([1.0, 0.0, 0.0, 2.0]), 9) == 3


def test_drafts_share_the_target_s_noise() -> None:
    """Equal logits give equal draws; close ones mostly do, far more than independent draws."""
    g = torch.Generator().manual_seed(4)
    sampler = Sampler(Sampling(1.0, seed=5))
    agreed = 0
    for position in range(200):
        target = torch.randn(64, generator=g)
        assert sampler.choose(target, position) == sampler.propose(target, position)
        draft = target + 0.1 * torch.randn(64, generator=g)
        agreed += sampler.choose(target, position) == sampler.propose(draft, position)
    assert agreed > 160


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"temperature": -0.1}, "temperature must be 0 or more; got -0.1."),
        ({"temperature": math.nan}, "temperature must be 0 or more; got nan."),
        ({"temperature": math.inf}, "temperature must be 0 or more; got inf."),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1; got 0.0."),
        ({"top_p": 1.1}, "top_p must be above 0 and at most 1; got 1.1."),
        ({"top_k": -1}, "top_k must be 0 (off) or more; got -1."),
        ({"min_p": -0.5}, "min_p must be from 0 to 1; got -0.5."),
        ({"min_p": 2.0}, "min_p must be from 0 to 1; got 2.0."),
    ],
)
def test_impossible_sampling_is_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Sampling(**fields)
    assert str(caught.value) == sentence
