"""After a partial accept, a sequence's state is bit-equal to one that never drafted."""

from __future__ import annotations

import copy
from itertools import pairwise
from pathlib import Path

import checkpoints
import pytest
import torch
from checkpoints import Configure
from script import Script

from engine.engine import Engine
from engine.errors import EngineError
from engine.state import TILE, State
from engine.torch_backend import prefill, speculate

LENGTH = 280  # past two windows of 128, many of the sliding window, and the indexer's top-k
TEXT = [(i * i * 7 + i * 13 + 5) % 249 for i in range(LENGTH + 2 * TILE)]
JUNK = [(i * 29 + 101) % 249 for i in range(TILE)]

# Every phase of 4 and of 128; the second window of 128 as well.
STARTS = [*range(140), *range(246, 258)]
# Around the first emission, the edge of the sliding window and the windows of 128.
EDGES = [*range(10), *range(14, 22), *range(119, 129), *range(247, 257)]


@torch.inference_mode()
def advance(engine: Engine, state: State, tokens: list[int], kept: int) -> None:
    """One step over `tokens` of which the first `kept` are committed."""
    engine.backbone.forward(torch.tensor(tokens), state)
    state.commit(kept)


@pytest.fixture(
    scope="module",
    params=["float32", "packed"],
)
def engine(request: pytest.FixtureRequest, phased: Path, configure: Configure) -> Engine:
    return Engine.load(phased, configure(moe="dense", context=512, cache_format=request.param))


@pytest.fixture(scope="module")
def phased(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.random_checkpoint(tmp_path_factory.mktemp("phased"), checkpoints.PHASED)


@pytest.fixture(scope="module")
def undrafted(engine: Engine) -> list[State]:
    """States after 0, 1, 2, ... tokens that were decoded one by one."""
    state = engine.new_state()
    states = [state.snapshot()]
    for token in TEXT[: LENGTH + TILE]:
        advance(engine, state, [token], 1)
        states.append(state.snapshot())
    return states


def text(start: int, count: int) -> list[int]:
    return TEXT[start : start + count]


def test_every_accepted_count_leaves_the_state_that_never_drafted(
    engine: Engine, undrafted: list[State]
) -> None:
    for start in STARTS:
        state = undrafted[start].snapshot()
        with torch.inference_mode():
            engine.backbone.forward(torch.tensor(text(start, TILE)), state)
        for kept in (
            range(TILE + 1) if start in EDGES else (start % 3, 3 + start % 3, 6 + start % 3)
        ):
            taken = copy.deepcopy(state)
            taken.commit(kept)
            assert taken.equals(undrafted[start + kept]) is None, (start, kept)


def test_rejected_tokens_leave_no_trace(engine: Engine, undrafted: list[State]) -> None:
    for start in EDGES:
        for width in (2 + start % 7, TILE):
            kept = (start * 5 + width) % width
            state = undrafted[start].snapshot()
            advance(engine, state, text(start, kept) + JUNK[kept:width], kept)
            assert state.equals(undrafted[start + kept]) is None, (start, width, kept)


def test_a_rejected_step_does_change_the_state_before_it_is_taken_back(
    engine: Engine, undrafted: list[State]
) -> None:
    """Else the comparisons above would compare nothing."""
    for start in (122, 250):
        state = undrafted[start].snapshot()
        with torch.inference_mode():
            engine.backbone.forward(torch.tensor(JUNK), state)
        touched = {
            name
            for name, tensor in state.tensors().items()
            if not torch.equal(tensor, undrafted[start].tensors()[name])
        }
        assert touched == set(state.tensors()) - {"draft"}
        state.rollback()
        assert state.equals(undrafted[start]) is None


def test_steps_after_many_partial_accepts_still_agree(
    engine: Engine, undrafted: list[State]
) -> None:
    state, round_number = engine.new_state(), 0
    while state.length + TILE <= LENGTH:
        kept = (round_number * 3 + state.length) % (TILE + 1)
        tokens = text(state.length, kept) + JUNK[kept:]
        advance(engine, state, tokens, kept)
        round_number += 1
    assert round_number > 50
    assert state.equals(undrafted[state.length]) is None


def test_prefill_in_short_chunks_leaves_the_state_of_single_steps(
    engine: Engine, undrafted: list[State]
) -> None:
    for cuts in ((0, 1, 4, 9, 17), (0, 8, 16, 24, 31), (0, 5, 10, 15, 20)):
        state = engine.new_state()
        for first, stop in pairwise(cuts):
            advance(engine, state, text(first, stop - first), stop - first)
        assert state.equals(undrafted[cuts[-1]]) is None


# ------------------------------------------------------------------ whole rounds, draft rows too


@torch.inference_mode()
def test_rounds_leave_the_state_of_plain_decoding_with_the_draft_rows(engine: Engine) -> None:
    script = TEXT
    for prompt in (1, 3, 12, 15, 16, 122, 126, 127):
        base = engine.new_state()
        prefill(engine.backbone, engine.drafter, base, script[:prompt])
        plain, plains = base.snapshot(), {prompt: base}
        for _ in range(6):
            speculate(
                engine.backbone, engine.drafter, plain, Script(script), script[plain.length], 1
            )
            plains[plain.length] = plain.snapshot()
        for hits in range(6):
            state = base.snapshot()
            miss = prompt + 1 + hits
            sampler = Script(script, {miss: (script[miss] + 1) % 249})
            tokens, sure, accepted = speculate(
                engine.backbone, engine.drafter, state, sampler, script[prompt], 100
            )
            assert (len(sure), accepted) == (5, hits)
            assert tokens == script[prompt + 1 : prompt + 2 + hits]
            assert state.draft_length == state.length == prompt + 1 + hits
            assert state.equals(plains[state.length]) is None, (prompt, hits)


@torch.inference_mode()
def test_draft_rows_are_the_newest_window_in_whatever_pieces_they_came(engine: Engine) -> None:
    head = engine.drafter
    assert head is not None
    width = engine.backbone.weights.draft.main_proj.shape[1]
    taps = torch.randn(70, width, generator=torch.Generator().manual_seed(1))
    whole = engine.new_state()
    for row in taps.split(1):
        head.extend(whole, row)
    for sizes in ([8] * 8 + [6], [1, 5, 3, 8, 2, 7, 8, 8, 8, 8, 8, 4], [4] * 17 + [2]):
        state = engine.new_state()
        for piece in taps.split(sizes):
            head.extend(state, piece)
        assert state.equals(whole) is None
    long = engine.new_state()
    head.extend(long, taps)
    decoded, want = (s.row_format.decode(s.draft) for s in (long, whole))
    # A flipped rounding moves an E4M3 value by up to an eighth of it.
    torch.testing.assert_close(decoded, want, atol=1e-4, rtol=0.13)


# ------------------------------------------------------------------ copies and misuse


def test_restoring_a_snapshot_undoes_everything_since(
    engine: Engine, undrafted: list[State]
) -> None:
    state = undrafted[40].snapshot()
    saved = state.snapshot()
    advance(engine, state, JUNK, TILE)
    advance(engine, state, JUNK, 3)
    with torch.inference_mode():
        engine.backbone.forward(torch.tensor(JUNK), state)  # left open
    state.restore(saved)
    assert state.equals(undrafted[40]) is None
    advance(engine, state, text(40, 5), 5)
    assert state.equals(undrafted[45]) is None


def test_a_snapshot_shares_nothing_with_its_original(
    engine: Engine, undrafted: list[State]
) -> None:
    state = undrafted[40].snapshot()
    saved = state.snapshot()
    advance(engine, state, JUNK, TILE)
    assert saved.equals(undrafted[40]) is None
    assert state.equals(saved) == "length"
    assert state.size_bytes() == saved.size_bytes() > 0


@pytest.mark.parametrize(
    "part", ["window", "draft", "rows.4.rows", "keys.4.inputs", "rows.128.inputs"]
)
def test_one_changed_bit_is_found_and_named(undrafted: list[State], part: str) -> None:
    state = undrafted[40].snapshot()
    state.tensors()[part].view(torch.uint8).flatten()[-3] ^= 1
    assert state.equals(undrafted[40]) == part


def test_misuse_of_steps_is_refused(engine: Engine) -> None:
    state = engine.new_state()
    with pytest.raises(EngineError, match="No step is open"):
        state.commit(0)
    with pytest.raises(EngineError, match="No step is open"):
        state.rollback()
    state.begin(4)
    with pytest.raises(EngineError, match="already open"):
        state.begin(1)
    with pytest.raises(EngineError, match="snapshot needs the open step"):
        state.snapshot()
    for count in (-1, 5):
        with pytest.raises(EngineError, match=f"4 rows cannot commit {count}"):
            state.commit(count)
    state.commit(4)
    assert state.length == 4


def test_a_step_longer_than_a_tile_commits_whole_or_not_at_all(engine: Engine) -> None:
    state = engine.new_state()
    state.begin(TILE + 1)
    with pytest.raises(EngineError, match="cannot commit"):
        state.commit(TILE)
    with pytest.raises(EngineError, match="cannot commit"):
        state.rollback()
    state.commit(TILE + 1)


# ------------------------------------------------------------------ what may share a step


@pytest.mark.parametrize("context", [300, 700, 2048])
def test_rows_within_the_span_read_equally_many_compressed_rows(
    quick_engine: Engine, configure: Configure, context: int
) -> None:
    quick_engine.reconfigure(configure(moe="dense", context=context))
    state = quick_engine.new_state()
    for length in range(context):
        state.length = length
        span = state.span()
        assert span >= 1
        last = min(length + span, context) - 1
        for pool in state.pools.values():
            assert pool.bucketed(last) == pool.bucketed(length), (length, span)
        if last + 1 < context:
            assert any(p.bucketed(last + 1) != p.bucketed(length) for p in state.pools.values())


def test_every_visible_compressed_row_is_read(quick_engine: Engine, configure: Configure) -> None:
    quick_engine.reconfigure(configure(moe="dense"))
    state = quick_engine.new_state()
    for pool in state.pools.values():
        for position in range(0, 2048, 3):
            assert (position + 1) // pool.ratio <= pool.bucketed(position) <= pool.rows.shape[1]
