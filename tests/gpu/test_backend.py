"""The device backend at the real widths: four layers of the full geometry, with the draft head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.device import synthetic
from engine.device.backend import TritonBackend
from engine.device.state import State
from engine.engine import Engine, rounds
from engine.prefix import PrefixCache
from engine.sampling import Sampler, Sampling
from engine.suite import ASSETS
from engine.tokenizer import Tokenizer

pytestmark = pytest.mark.gpu

TINY = ASSETS / "tiny-v4"
LAYERS, CHUNK, CONTEXT = 4, 256, 4096
CONFIG = EngineConfig(
    backend="triton", dtype="bfloat16", prefill_chunk=CHUNK, context=CONTEXT, draft_width=5
)
PROMPT = [(i * i * 7919 + i * 31) % 129_000 + 2 for i in range(300)]


@pytest.fixture(scope="module")
def backend() -> Iterator[TritonBackend]:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    geometry = synthetic.geometry("k160", LAYERS)
    weights = synthetic.generate(geometry, device=torch.device("cuda", 0))
    yield TritonBackend(geometry, weights, CONFIG.effective(geometry, cores=1))
    torch.cuda.empty_cache()


def say(
    by: TritonBackend, ids: Sequence[int], count: int, *, drafting: bool = True, **sampling: Any
) -> list[int]:
    commits = rounds(by, drafting, list(ids), count, Sampler(Sampling(**sampling)), set())
    return [token for commit in commits for token in commit.tokens]


def state_after(by: TritonBackend, ids: Sequence[int]) -> State:
    state = by.new_state()
    by.prefill(state, ids)
    return state


def test_a_thousand_tokens_with_drafts_are_those_without(backend: TritonBackend) -> None:
    plain = say(backend, PROMPT, 1000, drafting=False)
    assert len(set(plain)) > 100  # no loop of a few tokens
    assert say(backend, PROMPT, 1000) == plain


def test_every_number_of_confirmed_drafts_leaves_the_bits_of_plain_decoding(
    backend: TritonBackend,
) -> None:
    text = [*PROMPT, *say(backend, PROMPT, 300, drafting=False)]
    plain, forced = state_after(backend, PROMPT), state_after(backend, PROMPT)
    turn, seen = 0, set()
    while forced.length + 6 < len(text):
        hits = turn % 6
        drafts = text[forced.length + 1 : forced.length + 6]
        if hits < 5:
            drafts[hits] = (drafts[hits] + 1) % 129_000
        done = backend.confirm(forced, text[forced.length], drafts)
        first = forced.length - len(done.tokens)
        assert done.tokens == text[first + 1 : first + 2 + hits], (turn, hits)
        seen.add(done.hits)
        while plain.length < forced.length:
            backend.confirm(plain, text[plain.length], [])
        assert forced.equals(plain) is None, (turn, hits, forced.length)
        turn += 1
    assert seen == set(range(6))


def test_rows_of_every_width_score_alike(backend: TritonBackend) -> None:
    state = state_after(backend, PROMPT)
    before = state.snapshot()
    rows = [backend.forward(state, PROMPT[: n + 1], keep=0) for n in range(8)]
    assert state.equals(before) is None
    for scores in rows[:-1]:
        assert torch.equal(scores, rows[-1][: len(scores)])


def test_a_graph_does_what_its_launches_do(backend: TritonBackend) -> None:
    eager = TritonBackend(
        backend.geometry, backend.layers.weights, replace(backend.config, graph="off")
    )
    ends = []
    for by in (backend, eager):
        state = state_after(by, PROMPT)
        sampler, token, told = Sampler(Sampling()), PROMPT[0], []
        for _ in range(12):
            done = by.round(state, sampler, token, room=6)
            told.append(done)
            token = done.tokens[-1]
        ends.append((told, state.snapshot()))
    assert ends[0][0] == ends[1][0]
    assert torch.equal(ends[0][1].arena, ends[1][1].arena)


def test_nothing_compiles_after_the_warm_up_and_a_round_waits_once(
    backend: TritonBackend,
) -> None:
    tally = backend.tally
    tally.watch()
    compiled, count = tally.compilations, 0
    for length in (1, 7, 100, 300, 1111):
        state = state_after(backend, (PROMPT * 4)[:length])
        waited, token = tally.syncs, 3
        for room in (8, 6, 5, 4, 3, 2, 1):
            token = backend.round(state, Sampler(Sampling()), token, room).tokens[-1]
            count += 1
        assert tally.syncs == waited + 7
    say(backend, PROMPT, 20, temperature=0.7, seed=1)
    say(backend, PROMPT, 20, temperature=0.7, seed=1, top_p=0.9)
    assert count == 35
    assert tally.compilations == compiled


def test_sampled_tokens_do_not_depend_on_drafts(backend: TritonBackend) -> None:
    for seed in range(2):
        plain = say(backend, PROMPT, 60, temperature=1.0, seed=seed, drafting=False)
        assert say(backend, PROMPT, 60, temperature=1.0, seed=seed) == plain


def test_a_remembered_beginning_leaves_the_bits_of_a_cold_run(backend: TritonBackend) -> None:
    ids = (PROMPT * 4)[: 3 * CHUNK + 5]
    cache = PrefixCache(1 << 32)
    first, cold, hit = backend.new_state(), backend.new_state(), backend.new_state()
    backend.prefill(first, ids, cache.open("it", ids, CHUNK))
    logits = backend.prefill(cold, ids)
    assert cache.open("it", ids, CHUNK).restore(hit) == 3 * CHUNK
    assert torch.equal(backend.prefill(hit, ids), logits)
    assert hit.equals(cold) is None


@pytest.fixture(scope="module")
def packed(backend: TritonBackend) -> TritonBackend:
    config = replace(backend.config, key_format="packed")
    return TritonBackend(backend.geometry, backend.layers.weights, config)


def test_packed_rows_change_no_bit_and_no_token(
    backend: TritonBackend, packed: TritonBackend
) -> None:
    ids = (PROMPT * 12)[:3300]  # more rows of ratio 4 than an indexer may choose
    scores = []
    for by in (backend, packed):
        state = by.new_state()
        told = [by.prefill(state, ids)]
        told += [by.forward(state, PROMPT[: n + 1], keep=n % 3) for n in range(8)]
        scores.append(told)
    for a, b in zip(*scores, strict=True):
        assert torch.equal(a, b)
    assert say(packed, ids, 300) == say(backend, ids, 300)
    assert packed.new_state().size_bytes() < backend.new_state().size_bytes()


def test_packed_rows_are_undone_and_replayed_as_plain_ones_are(packed: TritonBackend) -> None:
    test_every_number_of_confirmed_drafts_leaves_the_bits_of_plain_decoding(packed)
    test_a_graph_does_what_its_launches_do(packed)
    test_nothing_compiles_after_the_warm_up_and_a_round_waits_once(packed)
    test_a_remembered_beginning_leaves_the_bits_of_a_cold_run(packed)


@pytest.fixture(scope="module")
def embedded() -> tuple[Engine, Engine]:
    """The embedded model in exact numerics, on a GPU and on the processor."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    config = EngineConfig(numerics="exact", context=512)
    return Engine.load(TINY, replace(config, backend="triton")), Engine.load(TINY, config)


@pytest.mark.parametrize(
    "text",
    [
        "The capital of France is",
        "def add(a, b):\n    return",
        "Once upon a time there was a small",
        "List three colours: red,",
    ],
)
def test_the_embedded_model_says_on_a_gpu_what_it_says_on_the_processor(
    embedded: tuple[Engine, Engine], text: str
) -> None:
    """Exact numerics: what differs is a near-tie, and how near is part of the message."""
    ids = [0, *Tokenizer.load(TINY).encode(text)]
    there, here = (
        [t for commit in engine.generate(ids, max_new_tokens=128) for t in commit.tokens]
        for engine in embedded
    )
    place = next((i for i, (a, b) in enumerate(zip(there, here, strict=False)) if a != b), None)
    assert place is None, near_tie(embedded[1], [*ids, *here[:place]], there[place], here[place])
    assert len(there) == len(here)


def near_tie(engine: Engine, ids: list[int], there: int, here: int) -> str:
    """How far apart the processor sees the two tokens after `ids`."""
    scores = engine.backend.prefill(engine.new_state(), ids, drafting=False)[0]
    gap = float(scores[here] - scores[there])
    return f"after {len(ids)} tokens: {there} for {here}, whose logits differ by {gap:.3g}"
