"""Remembered beginnings: a hit changes nothing but the time, whatever came before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import checkpoints
import pytest
import torch
from checkpoints import Configure

from engine.engine import Commit, Engine
from engine.sampling import Sampling
from engine.torch_backend import prefill

CHUNK = 32
TEXT = [(i * i * 7 + i * 3) % 240 + 2 for i in range(700)]
# Around multiples of 4, of the chunk, of 128 and of the ring (136), and right after them.
LENGTHS = [
    1, 3, 4, 5, 31, 32, 33, 63, 64, 65, 127, 128, 129, 132, 135, 136, 137, 160, 161, 255, 256, 257,
    300, 383, 384, 385, 512, 513,
]  # fmt: skip


@pytest.fixture(scope="module")
def phased_engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """A window of 128, a layer that pools 4, one that pools 128, one that pools nothing."""
    folder = checkpoints.random_checkpoint(tmp_path_factory.mktemp("phased"), checkpoints.PHASED)
    return Engine.load(folder)


@pytest.fixture
def engine(phased_engine: Engine, configure: Configure) -> Iterator[Engine]:
    phased_engine.reconfigure(configure(moe="dense", prefill_chunk=CHUNK, draft_width=3))
    phased_engine.remember(1 << 30)
    yield phased_engine
    phased_engine.prefixes = None


def run(engine: Engine, prompt: Sequence[int], count: int = 6) -> list[Commit]:
    sampling = Sampling(logprobs=2)
    return list(engine.generate(prompt, max_new_tokens=count, sampling=sampling))


def said(commits: list[Commit]) -> list[object]:
    return [(c.tokens, c.finish, c.logprobs, c.round and c.round.accepted) for c in commits]


def cold(engine: Engine, prompt: Sequence[int], count: int = 6) -> list[object]:
    """What the engine says without any memory."""
    prefixes, engine.prefixes = engine.prefixes, None
    try:
        return said(run(engine, prompt, count))
    finally:
        engine.prefixes = prefixes


@torch.inference_mode()
def assert_same_state(engine: Engine, prompt: Sequence[int]) -> None:
    """Every byte after a restored prefill is what it is after one from nothing."""
    assert engine.prefixes is not None
    owner = (engine.config.fingerprint(), True)
    fresh, hit = engine.new_state(), engine.new_state()
    engine.prefixes.open(owner, prompt, CHUNK).restore(hit)
    logits = prefill(engine.backbone, engine.drafter, hit, prompt)
    assert torch.equal(logits, prefill(engine.backbone, engine.drafter, fresh, prompt))
    assert hit.equals(fresh) is None


@pytest.mark.parametrize("length", LENGTHS)
def test_an_exact_repetition_is_bit_equal(engine: Engine, length: int) -> None:
    prompt = TEXT[:length]
    first, again = run(engine, prompt), run(engine, prompt)
    assert said(first) == said(again) == cold(engine, prompt)
    assert first[0].cached == 0
    assert again[0].cached == (length - 1) // CHUNK * CHUNK
    assert_same_state(engine, prompt)


@pytest.mark.parametrize("length", [31, 32, 64, 129, 160, 256, 385])
def test_a_longer_prompt_goes_on_from_a_shorter_one(engine: Engine, length: int) -> None:
    run(engine, TEXT[:length])
    for more in (1, 4, 32, 127):
        prompt = TEXT[: length + more]
        hit = run(engine, prompt)
        assert said(hit) == cold(engine, prompt)
        assert hit[0].cached >= min(length, len(prompt) - 1) // CHUNK * CHUNK
        assert_same_state(engine, prompt)


def test_turns_of_a_conversation_hit_what_was_asked_before(engine: Engine) -> None:
    prompt, before = TEXT[:150], 0
    for turn in range(4):
        commits = run(engine, prompt, 20)
        assert said(commits) == cold(engine, prompt, 20)
        assert commits[0].cached == before // CHUNK * CHUNK
        before = len(prompt)
        prompt = prompt + [t for c in commits for t in c.tokens] + TEXT[turn * 40 : turn * 40 + 40]


def test_branches_and_rewinds_are_bit_equal(engine: Engine) -> None:
    run(engine, TEXT[:300])
    for place in (1, 40, 128, 131, 200, 299):
        branch = TEXT[:place] + TEXT[400:480]
        assert said(run(engine, branch)) == cold(engine, branch)
        rewound = TEXT[: max(1, place - 5)]
        assert said(run(engine, rewound)) == cold(engine, rewound)
        assert_same_state(engine, branch)
    assert said(run(engine, TEXT[:300])) == cold(engine, TEXT[:300])


def test_a_shared_beginning_is_found_from_its_second_use_on(engine: Engine) -> None:
    system = TEXT[: 5 * CHUNK + 3]
    cached = [run(engine, system + [TEXT[500 + i]] * 90)[0].cached // CHUNK for i in range(4)]
    assert cached == [0, 4, 5, 5]


def test_conversations_do_not_push_each_other_out(engine: Engine) -> None:
    prompts = [[TEXT[300 + i], *TEXT[:200]] for i in range(6)]
    for _ in range(2):
        told = [run(engine, p) for p in prompts]
    for prompt, commits in zip(prompts, told, strict=True):
        assert commits[0].cached == 192
        assert said(commits) == cold(engine, prompt)


def test_a_cancelled_run_leaves_only_what_is_right(engine: Engine) -> None:
    stream = engine.generate(TEXT[:400], max_new_tokens=50)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    hit = run(engine, TEXT[:420])
    assert hit[0].cached == 384
    assert said(hit) == cold(engine, TEXT[:420])


def test_plain_and_speculative_runs_share_nothing(engine: Engine) -> None:
    run(engine, TEXT[:100])
    plain = next(engine.generate(TEXT[:100], max_new_tokens=2, speculative=False))
    assert plain.cached == 0


def test_the_budget_holds_and_the_oldest_goes_first(engine: Engine) -> None:
    run(engine, TEXT[:130])
    assert engine.prefixes is not None
    one = engine.prefixes.size_bytes
    engine.remember(3 * one)
    prompts = [[TEXT[300 + i], *TEXT[:129]] for i in range(12)]
    for prompt in prompts:
        run(engine, prompt)
        run(engine, prompts[0])  # always wanted, so always there
        assert engine.prefixes.size_bytes <= 3 * one
    assert run(engine, prompts[0])[0].cached == 128
    assert run(engine, prompts[-1])[0].cached == 128
    assert run(engine, prompts[1])[0].cached == 0
    assert said(run(engine, prompts[1])) == cold(engine, prompts[1])


def test_without_room_nothing_is_kept(engine: Engine) -> None:
    engine.remember(1000)
    assert engine.prefixes is not None
    for _ in range(2):
        commits = run(engine, TEXT[:200])
        assert commits[0].cached == 0
    assert (engine.prefixes.size_bytes, len(engine.prefixes)) == (0, 0)
    assert said(commits) == cold(engine, TEXT[:200])


def test_interleaved_runs_under_pressure_stay_right(engine: Engine) -> None:
    engine.remember(1 << 20)
    for start in range(0, 60, 10):
        pair = [TEXT[start : start + 210], TEXT[start : start + 150] + TEXT[:70]]
        streams = [
            engine.generate(p, max_new_tokens=6, sampling=Sampling(logprobs=2)) for p in pair
        ]
        told: list[list[Commit]] = [[], []]
        for place in (0, 1, 0, 1):
            told[place].extend([c for _, c in zip(range(1), streams[place], strict=False)])
        for place in (0, 1):
            told[place].extend(streams[place])
            assert said(told[place]) == cold(engine, pair[place])
    assert engine.prefixes is not None
    assert engine.prefixes.size_bytes <= 1 << 20
