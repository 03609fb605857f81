"""Trees of drafts are exact; typical acceptance is not, and only above temperature 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.batch import Batch
from engine.config import EngineConfig
from engine.engine import Commit, Engine
from engine.errors import ConfigError
from engine.lossy import is_typical
from engine.sampling import Sampler, Sampling
from engine.torch_backend import own
from engine.tree import followed

Configure = Callable[..., EngineConfig]
PROMPTS = tuple(
    [(i * 97 + j * j * 7 + j * 31) % 240 + 2 for j in range(length)]
    for i, length in enumerate((3, 17, 50, 126))
)
LENGTH = 32
TREES = ("2,2", "3,1,2")


def said(engine: Engine, prompt: list[int], **sampling: Any) -> list[Commit]:
    wanted = Sampling(**{"seed": 5, **sampling})
    return list(engine.generate(prompt, max_new_tokens=LENGTH, sampling=wanted))


def tokens(commits: list[Commit]) -> list[int]:
    return [token for commit in commits for token in commit.tokens]


def rounds(commits: list[Commit]) -> int:
    return sum(commit.round is not None for commit in commits)


@pytest.fixture(scope="module", params=["small", "quick"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return Engine.load(request.getfixturevalue(request.param), EngineConfig(threads=1))


@pytest.mark.parametrize("warm", [0.0, 1.0])
def test_a_tree_says_what_plain_decode_says_in_fewer_rounds(
    engine: Engine, configure: Configure, warm: float
) -> None:
    engine.reconfigure(configure(draft_width=0))
    plain = [tokens(said(engine, prompt, temperature=warm)) for prompt in PROMPTS]
    engine.reconfigure(configure())
    chain = sum(rounds(said(engine, prompt, temperature=warm)) for prompt in PROMPTS)
    for tree in TREES:
        engine.reconfigure(configure(draft_tree=tree))
        found = [said(engine, prompt, temperature=warm) for prompt in PROMPTS]
        assert [tokens(commits) for commits in found] == plain, tree
        assert sum(rounds(commits) for commits in found) <= chain, tree
        assert all(c.round.accepted <= c.round.offered <= 5 for f in found for c in f if c.round)


def test_after_a_round_with_a_tree_the_state_is_that_of_a_round_without(
    engine: Engine, configure: Configure
) -> None:
    states, counts = [], []
    for tree in ("", "2,2"):
        engine.reconfigure(configure(draft_tree=tree))
        backend, sampler = engine.backend, Sampler(Sampling())
        with torch.inference_mode():
            state = backend.new_state()
            row = backend.prefill(state, PROMPTS[1])[-1]
            last, count = sampler.choose(row, state.length), 0
            while state.length < 90:
                room = min(90 - state.length, state.span())
                last = backend.round(state, sampler, last, room).tokens[-1]
                count += 1
        states.append(own(state))
        counts.append(count)
    assert states[1].equals(states[0]) is None
    assert counts[1] <= counts[0]


@pytest.mark.parametrize("policy", ["margin", "confidence"])
def test_a_policy_cuts_every_path_of_a_tree(
    engine: Engine, configure: Configure, policy: str
) -> None:
    engine.reconfigure(configure(draft_width=0))
    plain = tokens(said(engine, PROMPTS[2]))
    engine.reconfigure(configure(draft_tree="2", verify_policy=policy, margin_threshold=4.0,
                                 confidence_threshold=0.25))  # fmt: skip
    found = said(engine, PROMPTS[2])
    assert tokens(found) == plain
    assert len({c.round.offered for c in found if c.round}) > 1


def test_what_is_filtered_or_served_beside_others_is_as_exact(
    engine: Engine, configure: Configure
) -> None:
    engine.reconfigure(configure(draft_tree="2,2"))
    exact = [tokens(said(engine, prompt, temperature=1.0, top_k=8)) for prompt in PROMPTS[:2]]
    batch = Batch(engine, 2)
    assert not batch.shares
    sampling = Sampling(temperature=1.0, top_k=8, seed=5)
    active = [batch.begin(p, max_new_tokens=LENGTH, sampling=sampling) for p in PROMPTS[:2]]
    heard: dict[int, list[int]] = {0: [], 1: []}
    whole = list(active)
    while active:
        for generation, outcome in batch.advance(active):
            assert isinstance(outcome, Commit)
            heard[whole.index(generation)] += outcome.tokens
        active = [g for g in active if g.finish is None]
    assert list(heard.values()) == exact


def test_the_path_that_the_target_says_is_followed_as_far_as_it_goes() -> None:
    paths = ((1, 2, 3), (1, 4, 5), (6, 7, 8))

    def walk(*wanted: int) -> tuple[list[int], int]:
        rows = [torch.zeros(4)] * 3
        return followed(paths, rows, lambda _, at: wanted[at])

    assert walk(9) == ([9], 0)
    assert walk(1, 4, 5, 0) == ([1, 4, 5, 0], 1)
    assert walk(6, 2) == ([6, 2], 2)
    assert walk(1, 2, 9) == ([1, 2, 9], 0)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"draft_tree": "9"}, "children by depth"),
        ({"draft_tree": "2,2,2,2"}, "at most 8 paths"),
        ({"draft_tree": "2,2", "draft_width": 1}, "deeper than draft_width"),
        ({"draft_tree": "2", "verify_rows": "apart"}, "one plain forward"),
        ({"draft_tree": "2", "backend": "triton"}, "torch backend"),
        ({"acceptance": "typical", "backend": "triton"}, "torch backend"),
        ({"acceptance": "sometimes"}, "one of exact, typical"),
    ],
)
def test_what_cannot_be_is_refused(
    engine: Engine, configure: Configure, fields: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        configure(**fields).effective(engine.geometry, 1)


def test_typical_acceptance_is_exact_at_temperature_0_and_lossy_above(
    engine: Engine, configure: Configure
) -> None:
    found = {}
    for acceptance in ("exact", "typical"):
        engine.reconfigure(configure(acceptance=acceptance))
        found[acceptance] = [
            [said(engine, p, temperature=warm) for p in PROMPTS] for warm in (0.0, 1.0)
        ]
    cold, warm = ([[tokens(c) for c in found[a][i]] for a in found] for i in (0, 1))
    assert cold[0] == cold[1]
    assert warm[0] != warm[1]


def test_a_request_that_keeps_count_of_choices_is_verified_exactly(
    engine: Engine, configure: Configure
) -> None:
    asked: dict[str, Any] = {"temperature": 1.0, "top_p": 0.9, "presence_penalty": 0.5}
    texts = []
    for acceptance in ("exact", "typical"):
        engine.reconfigure(configure(acceptance=acceptance))
        texts.append([tokens(said(engine, p, **asked)) for p in PROMPTS[:2]])
    assert texts[0] == texts[1]


def test_a_token_is_typical_by_how_sure_the_target_is() -> None:
    sure, unsure = torch.tensor([9.0, 0.0, 0.0, 0.0]), torch.tensor([1.0, 0.9, 0.8, -9.0])
    assert not is_typical(sure, 1, 1.0)
    assert is_typical(unsure, 2, 1.0)
    assert not is_typical(unsure, 3, 1.0)
