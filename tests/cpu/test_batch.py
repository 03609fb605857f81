"""Generations that advance together: each says what it says alone, whatever happens beside it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from checkpoints import Configure
from test_row_independence import VARIANTS, named

from engine.batch import Batch, Generation
from engine.engine import Commit, Engine
from engine.errors import ContextOverflow, EngineError, NumericsError, PromptError
from engine.independence import sequences_are_independent
from engine.model import Backbone
from engine.sampling import Constraint, Sampling
from engine.torch_backend import own, prefill

CHUNK = 32
TEXT = [(i * i * 7 + i * 3) % 240 + 2 for i in range(700)]


@pytest.fixture
def engine(quick_engine: Engine, configure: Configure) -> Iterator[Engine]:
    quick_engine.reconfigure(configure(prefill_chunk=CHUNK, draft_width=4))
    yield quick_engine
    quick_engine.prefixes = None


def prompt(place: int, length: int) -> list[int]:
    return TEXT[place : place + length]


def alone(engine: Engine, given: Sequence[int], count: int, sampling: Sampling) -> list[int]:
    commits = engine.generate(given, max_new_tokens=count, sampling=sampling)
    return [token for commit in commits for token in commit.tokens]


def run(
    batch: Batch, generations: Sequence[Generation], said: dict[Generation, list[Commit]]
) -> list[Generation]:
    """One turn; the generations that go on."""
    for generation, commit in batch.advance(generations):
        assert isinstance(commit, Commit), commit
        said.setdefault(generation, []).append(commit)
    return [g for g in generations if g.finish is None]


def tokens(commits: Sequence[Commit]) -> list[int]:
    return [token for commit in commits for token in commit.tokens]


# ------------------------------------------------------------------ rows


@pytest.mark.parametrize("fields", VARIANTS, ids=named)
@torch.inference_mode()
def test_rows_of_several_sequences_have_the_bits_of_steps_of_their_own(
    small_engine: Engine, configure: Configure, fields: dict[str, Any]
) -> None:
    if fields.get("numerics") == "reference":
        pytest.skip("the small checkpoint's widths are no multiples of 128")
    small_engine.reconfigure(configure(**fields))
    backbone = small_engine.backbone
    if not sequences_are_independent(backbone, 5):
        pytest.skip("on this machine these sequences would not share a forward")
    lengths, counts = (3, 126, 131, 300, 511), (4, 1, 3, 4, 2)
    states = []
    for length in lengths:
        state = small_engine.new_state()
        prefill(backbone, None, state, TEXT[:length])
        states.append(state)
    for most in (2, 3, 5):
        work = [
            (torch.tensor(TEXT[n : n + k]), state.snapshot())
            for n, k, state in zip(lengths, counts, states, strict=True)
        ][:most]
        forward, joint = backbone.forward_together(work)
        logits = backbone.logits(forward)
        for (ids, state), rows, before in zip(work, joint.rows, states, strict=False):
            own = before.snapshot()
            lone = backbone.forward(ids, own)
            assert torch.equal(backbone.logits(lone), logits[rows])
            assert torch.equal(lone.taps[: lone.count], forward.taps[rows])
            kept = ids.numel() // 2
            own.commit(kept)
            state.commit(kept)
            assert own.equals(state) is None


def test_the_check_sees_products_that_depend_on_their_number_of_rows(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Backbone._head_scores

    def dependent(streams: torch.Tensor) -> torch.Tensor:
        return honest(engine.backbone, streams) * (1 + (streams.shape[0] > 8) * 1e-6)

    monkeypatch.setattr(engine.backbone, "_head", dependent)
    assert not sequences_are_independent(engine.backbone, 4)


# ------------------------------------------------------------------ generations


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "fields", [{}, {"verify_rows": "apart"}, {"draft_width": 0}, {"verify_policy": "confidence"}]
)
def test_each_says_what_it_says_alone_whoever_comes_and_goes(
    engine: Engine, configure: Configure, fields: dict[str, Any], seed: int
) -> None:
    engine.reconfigure(configure(prefill_chunk=CHUNK, **{"draft_width": 4, **fields}))
    engine.remember(1 << 26)
    draw = random.Random(seed)
    asks = [
        (prompt(draw.choice((0, 0, 200)), draw.choice((1, 31, 32, 90, 140))), draw.randrange(1, 40),
         Sampling(temperature=draw.choice((0.0, 1.0)), seed=i, logprobs=draw.choice((None, 2))))
        for i in range(10)
    ]  # fmt: skip
    batch = Batch(engine, 5)
    assert not (batch.shares and fields.get("verify_rows") == "apart")
    waiting, active, said = list(enumerate(asks)), [], {}
    places: dict[Generation, int] = {}
    left: set[int] = set()
    while waiting or active:
        while waiting and len(active) < 5 and draw.random() < 0.6:
            place, (given, count, sampling) = waiting.pop(0)
            generation = batch.begin(given, max_new_tokens=count, sampling=sampling)
            places[generation] = place
            active.append(generation)
        active = run(batch, active, said)
        if active and draw.random() < 0.05:
            left.add(places[active.pop(draw.randrange(len(active)))])
    engine.prefixes = None
    for generation, place in places.items():
        expected = alone(engine, *asks[place])
        found = tokens(said.get(generation, []))
        assert found == expected[: len(found)]
        assert place in left or len(found) == len(expected)


def test_everything_that_a_commit_tells_is_the_same(engine: Engine) -> None:
    sampling = Sampling(logprobs=3)
    lone = list(engine.generate(prompt(0, 50), max_new_tokens=30, sampling=sampling))
    batch, said = Batch(engine, 3), {}
    mine = batch.begin(prompt(0, 50), max_new_tokens=30, sampling=sampling)
    active = [mine, *(batch.begin(prompt(i, 40), max_new_tokens=60) for i in (100, 300))]
    while active:
        active = run(batch, active, said)
    assert tokens(said[mine]) == tokens(lone)
    told = [record for commit in said[mine] for record in commit.logprobs]
    assert told == [record for commit in lone for record in commit.logprobs]
    assert said[mine][-1].finish == lone[-1].finish == "length"


def test_a_remembered_beginning_is_found_by_whoever_comes_later(engine: Engine) -> None:
    engine.remember(1 << 26)
    batch, said = Batch(engine, 4), {}
    active = [batch.begin(prompt(0, n), max_new_tokens=4) for n in (130, 140, 200)]
    while active:
        active = run(batch, active, said)
    late = batch.begin(prompt(0, 150), max_new_tokens=4)
    active = [late]
    while active:
        active = run(batch, active, said)
    assert said[late][0].cached >= 128
    engine.prefixes = None
    assert tokens(said[late]) == alone(engine, prompt(0, 150), 4, Sampling())


def test_a_full_context_is_filled_to_the_last_place(engine: Engine, configure: Configure) -> None:
    engine.reconfigure(configure(prefill_chunk=CHUNK, context=64, draft_width=4))
    batch, said = Batch(engine, 3), {}
    active = [batch.begin(prompt(0, n), max_new_tokens=64 - n) for n in (1, 30, 63)]
    every = list(active)
    while active:
        active = run(batch, active, said)
    assert [len(tokens(said[g])) for g in every] == [63, 34, 1]


def test_what_cannot_be_generated_is_refused_before_any_work(engine: Engine) -> None:
    batch = Batch(engine, 2)
    with pytest.raises(PromptError):
        batch.begin([], max_new_tokens=1)
    with pytest.raises(ContextOverflow):
        batch.begin(prompt(0, 300), max_new_tokens=1 << 20)


# ------------------------------------------------------------------ turns


def test_a_long_prompt_delays_a_round_by_one_chunk_at_most(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, said = Batch(engine, 3), {}
    talker = batch.begin(prompt(0, 5), max_new_tokens=200)
    active = run(batch, [talker], said)
    longs = [batch.begin(prompt(i, 300), max_new_tokens=2) for i in (0, 300)]
    read: list[int] = []
    honest = Backbone.forward

    def counted(self: Backbone, ids: torch.Tensor, state: Any) -> Any:
        if ids.numel() > 8:
            read.append(ids.numel())
        return honest(self, ids, state)

    monkeypatch.setattr(Backbone, "forward", counted)
    active += longs
    while any(g.token is None for g in longs):
        chunks, commits = len(read), len(said[talker])
        active = run(batch, active, said)
        assert len(read) - chunks <= 1
        assert len(said[talker]) == commits + 1


def test_prompts_are_read_in_turns(engine: Engine) -> None:
    batch, said = Batch(engine, 3), {}
    short, long = (batch.begin(prompt(i, n), max_new_tokens=2) for i, n in ((0, 60), (100, 400)))
    active = [long, short]
    for _ in range(4):
        active = run(batch, active, said)
    assert short in said  # two chunks each, though the long one came first
    assert long not in said


# ------------------------------------------------------------------ failures


class Failing:
    """A constraint that allows everything until it raises."""

    def __init__(self, choices: int, *, in_drafts: bool) -> None:
        self._left = choices
        self._in_drafts = in_drafts

    def mask(self, logits: torch.Tensor) -> torch.Tensor:
        return logits

    def advance(self, token: int) -> None:
        self._left -= 1
        if self._left < 0:
            raise EngineError("The reply left its grammar.")

    def fork(self) -> Constraint:
        return Failing(1 if self._in_drafts else 100, in_drafts=False)


@pytest.mark.parametrize("in_drafts", [False, True])
def test_one_that_fails_harms_no_other(engine: Engine, in_drafts: bool) -> None:
    batch, said = Batch(engine, 3), {}
    constrain = lambda: Failing(100 if in_drafts else 6, in_drafts=in_drafts)  # noqa: E731
    bad = batch.begin(prompt(9, 20), max_new_tokens=40, sampling=Sampling(constrain=constrain))
    good = [batch.begin(prompt(i, 40), max_new_tokens=40) for i in (50, 90)]
    active, failed = [good[0], bad, good[1]], []
    while active:
        for generation, outcome in batch.advance(active):
            if isinstance(outcome, Exception):
                failed.append((generation, str(outcome)))
                active.remove(generation)
            else:
                said.setdefault(generation, []).append(outcome)
        active = [g for g in active if g.finish is None]
    assert failed == [(bad, "The reply left its grammar.")]
    for place, generation in zip((50, 90), good, strict=True):
        assert tokens(said[generation]) == alone(engine, prompt(place, 40), 40, Sampling())


def test_logits_that_are_not_finite_end_their_own_generation_only(engine: Engine) -> None:
    batch, said = Batch(engine, 2), {}
    bad, good = (batch.begin(prompt(i, 20), max_new_tokens=30) for i in (0, 50))
    for _ in range(3):
        run(batch, [bad, good], said)
    with torch.inference_mode():
        own(bad.state).window.fill_(torch.nan)
    outcomes = dict(batch.advance([bad, good]))
    assert isinstance(outcomes[bad], NumericsError)
    active = [good]
    said[good].append(outcomes[good])  # type: ignore[arg-type]
    while active:
        active = run(batch, active, said)
    assert tokens(said[good]) == alone(engine, prompt(50, 20), 30, Sampling())


@pytest.mark.parametrize("companions", [0, 1])
def test_broken_weights_are_a_fault_of_the_engine_and_of_no_generation(
    engine: Engine, companions: int
) -> None:
    batch, said = Batch(engine, 2), {}
    active = [batch.begin(prompt(i, 20), max_new_tokens=30) for i in range(1 + companions)]
    for _ in range(3):
        run(batch, active, said)
    weights = engine.backbone.weights
    embed = weights.embed.data
    try:
        weights.embed.data = embed[:0]
        with pytest.raises(RuntimeError):
            batch.advance(active)
    finally:
        weights.embed.data = embed
