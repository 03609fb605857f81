"""Penalties, bias and log-probabilities: speculation must not show in any of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from checkpoints import Configure

from engine.engine import Commit, Engine
from engine.errors import PromptError
from engine.sampling import Sampler, Sampling
from engine.torch_backend import prefill

PROMPT = [7, 8, 9, 10, 11]
SAMPLINGS = [
    Sampling(frequency_penalty=1.5, presence_penalty=0.5),
    Sampling(0.8, seed=3, presence_penalty=2.0),
    Sampling(1.0, seed=4, logit_bias=((20, 3.0), (21, -100.0))),
]


@pytest.fixture
def engine(quick_engine: Engine, configure: Configure) -> Engine:
    quick_engine.reconfigure(configure(moe="dense"))
    return quick_engine


def run(engine: Engine, sampling: Sampling, *, speculative: bool = True) -> list[Commit]:
    commits = engine.generate(PROMPT, max_new_tokens=40, sampling=sampling, speculative=speculative)
    return list(commits)


def tokens(commits: list[Commit]) -> list[int]:
    return [t for commit in commits for t in commit.tokens]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_speculation_shows_in_neither_tokens_nor_logprobs(
    engine: Engine, sampling: Sampling
) -> None:
    told = replace(sampling, logprobs=3)
    fast, slow = run(engine, told), run(engine, told, speculative=False)
    assert any(len(c.tokens) > 1 for c in fast)
    assert tokens(fast) == tokens(slow) == tokens(run(engine, sampling))
    assert [r for c in fast for r in c.logprobs] == [r for c in slow for r in c.logprobs]


def test_every_token_has_its_logprob_under_the_target(engine: Engine) -> None:
    commits = run(engine, Sampling(logprobs=2))
    records = [r for c in commits for r in c.logprobs]
    assert [r.token for r in records] == tokens(commits)
    with torch.inference_mode():
        logits = prefill(engine.backbone, None, engine.new_state(), PROMPT)[0]
    expected = torch.log_softmax(logits.double(), -1)
    first = records[0]
    assert first.logprob == pytest.approx(float(expected[first.token]))
    assert [t for t, _ in first.top] == expected.topk(2).indices.tolist()
    assert all(r.top[0] == (r.token, r.logprob) for r in records)  # greedy


def test_a_strong_presence_penalty_never_repeats() -> None:
    sampler = Sampler(Sampling(presence_penalty=2.0))
    logits = torch.linspace(0, 1, 8)
    assert [sampler.choose(logits, p) for p in range(8)] == [7, 6, 5, 4, 3, 2, 1, 0]


def test_a_frequency_penalty_grows_with_each_use() -> None:
    sampler = Sampler(Sampling(frequency_penalty=0.5))
    counts = Counter(sampler.choose(torch.tensor([1.2, 0.0]), p) for p in range(8))
    assert counts == {0: 5, 1: 3}


def test_a_draft_counts_as_nothing_said() -> None:
    sampler = Sampler(Sampling(presence_penalty=2.0, logprobs=0))
    for position in range(3):
        assert sampler.propose(torch.tensor([1.0, 0.5]), position) == 0
    assert sampler.take_logprobs() == ()


def test_bias_forces_and_forbids() -> None:
    logits = torch.zeros(4)
    assert Sampler(Sampling(logit_bias=((2, 100.0),))).choose(logits, 0) == 2
    assert Sampler(Sampling(logit_bias=((0, -100.0),))).choose(logits, 0) == 1


def test_bias_outside_the_vocabulary_is_refused(engine: Engine) -> None:
    with pytest.raises(PromptError, match="logit_bias holds token 5000"):
        engine.generate(PROMPT, max_new_tokens=2, sampling=Sampling(logit_bias=((5000, 1.0),)))
