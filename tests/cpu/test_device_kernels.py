"""The device backend on the real kernels, under Triton's interpreter: bits, not just tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import checkpoints
import gates
import pytest
import torch

gates.interpreter()

from engine.config import EngineConfig  # noqa: E402
from engine.device import checkpoint  # noqa: E402
from engine.device.backend import TritonBackend  # noqa: E402
from engine.engine import Engine, rounds  # noqa: E402
from engine.geometry import Geometry  # noqa: E402
from engine.sampling import Sampler, Sampling  # noqa: E402
from kernels.oracle.packed import plain as as_plain  # noqa: E402

pytestmark = pytest.mark.slow  # the interpreter runs program after program

# The least that has a layer with an indexer and one without, and widths that the kernels join.
MINI = checkpoints.SMALL | {
    "vocab_size": 64,
    "num_hidden_layers": 2,
    "num_hash_layers": 1,
    "num_attention_heads": 1,
    "o_groups": 1,
    "o_lora_rank": 128,
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
    "sliding_window": 8,
    "compress_ratios": [4, 8, 0],
    "index_n_heads": 1,
    "index_topk": 2,
    "dspark_noise_token_id": 60,
    "dspark_target_layer_ids": [0, 1],
    "hc_mult": 2,
    "hc_sinkhorn_iters": 2,
}
TEXT = [(i * i * 7 + i * 3) % 60 + 2 for i in range(40)]


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.random_checkpoint(tmp_path_factory.mktemp("mini"), MINI)


@pytest.fixture(scope="module")
def make(mini: Path) -> Callable[..., TritonBackend]:
    geometry = Geometry.load(mini)
    weights = checkpoint.load(mini, geometry, device="cpu")

    @cache
    def build(**fields: Any) -> TritonBackend:
        config = EngineConfig(backend="triton", prefill_chunk=16, context=64, **fields)
        return TritonBackend(geometry, weights, config.effective(geometry, cores=1))

    return build


@pytest.fixture(scope="module")
def backend(make: Callable[..., TritonBackend]) -> TritonBackend:
    return make(numerics="exact")


@pytest.fixture(scope="module")
def packed(make: Callable[..., TritonBackend]) -> TritonBackend:
    return make(key_format="packed")


def test_kernels_say_what_the_torch_backend_says(mini: Path, backend: TritonBackend) -> None:
    engine = Engine.load(mini, EngineConfig(prefill_chunk=16, numerics="exact"))
    told = [
        [t for c in rounds(by, True, TEXT[:11], 4, Sampler(Sampling()), set()) for t in c.tokens]
        for by in (engine.backend, backend)
    ]
    assert told[0] == told[1]


@pytest.mark.parametrize("name", ["backend", "packed"])
def test_a_partial_accept_leaves_the_bits_of_plain_decoding(
    name: str, request: pytest.FixtureRequest
) -> None:
    backend = request.getfixturevalue(name)
    start = 14  # a window of 4 and one of 8 end within the step
    plain, state = backend.new_state(), backend.new_state()
    backend.prefill(plain, TEXT[:start])
    base, text = plain.snapshot(), [*TEXT[:start], 5]
    plains = []
    for _ in range(2):
        text.append(backend.confirm(plain, text[-1], []).tokens[0])
        plains.append(plain.snapshot())
    for hits, drafts in ((0, [63, 7, 8]), (1, [text[start + 1], 63, 9])):
        assert drafts[hits] != text[start + 1 + hits]
        state.restore(base)
        done = backend.confirm(state, text[start], drafts)
        assert done.tokens == text[start + 1 : start + 2 + hits]
        assert state.equals(plains[hits]) is None, hits


def test_rows_of_every_width_score_alike(backend: TritonBackend) -> None:
    state = backend.new_state()
    backend.prefill(state, TEXT[:13])
    before = state.snapshot()
    scores = [backend.forward(state, TEXT[13 : 13 + n], keep=0) for n in (1, 3)]
    assert state.equals(before) is None
    for few in scores[:-1]:
        assert torch.equal(few, scores[-1][: len(few)])


def test_packed_rows_change_no_bit_of_a_prompt_and_of_steps(
    make: Callable[..., TritonBackend], packed: TritonBackend
) -> None:
    """Around the ends of windows of 4 and 8, with more rows than the indexer may choose."""
    told, rows = [], []
    for by in (make(key_format="plain"), packed):
        state = by.new_state()
        said = [by.prefill(state, TEXT[:21], drafting=False)]
        said += [by.forward(state, TEXT[21:25], keep=3), by.forward(state, TEXT[24:25], keep=1)]
        told.append(said)
        rows.append(
            [as_plain(pool.rows(layer), torch.float32) for pool in state.pools.values()
             for layer in pool.layers]
        )  # fmt: skip
    for part in (told, rows):
        for a, b in zip(*part, strict=True):
            assert torch.equal(gates.bits(a), gates.bits(b))
    assert all(part.any() for part in rows[1])
