"""The device backend on plain PyTorch operations: what it commits, and what it leaves behind."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import gates
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

gates.interpreter()

from engine.backend import Backend  # noqa: E402
from engine.bench.synthetic import fill, state_bytes  # noqa: E402
from engine.config import OF_TORCH, OF_TRITON, EngineConfig  # noqa: E402
from engine.device import checkpoint, memory, requirement, synthetic  # noqa: E402
from engine.device.backend import TritonBackend  # noqa: E402
from engine.device.operations import Operations  # noqa: E402
from engine.device.state import State, Store, size_bytes  # noqa: E402
from engine.device.weights import Quantised, allocate  # noqa: E402
from engine.engine import Engine, rounds  # noqa: E402
from engine.errors import CheckpointError, ConfigError, DeviceError, NumericsError  # noqa: E402
from engine.geometry import Geometry  # noqa: E402
from engine.heads.source import DeviceSource, EngineSource, prove_deterministic  # noqa: E402
from engine.inventory.memory import growth, row_bytes, window_row_bytes  # noqa: E402
from engine.prefix import PrefixCache  # noqa: E402
from engine.sampling import Sampler, Sampling  # noqa: E402
from engine.suite import ASSETS  # noqa: E402
from engine.tokenizer import Tokenizer  # noqa: E402
from kernels.oracle import fp8_linear  # noqa: E402
from kernels.oracle.packed import plain as as_plain  # noqa: E402
from kernels.oracle.weight import decode_mxfp4  # noqa: E402

TINY = ASSETS / "tiny-v4"
CHUNK = 32
TEXT = [(i * i * 7 + i * 3) % 480 + 2 for i in range(400)]
LENGTHS = (1, 5, 33, 131)  # of prompts: around windows of 4, 16 and 128, and around chunks

Make = Callable[..., TritonBackend]


@pytest.fixture(scope="module")
def make(small: Path) -> Make:
    """The device backend on oracles, in a configuration of its own."""
    geometry = Geometry.load(small)
    config = EngineConfig(backend="triton", prefill_chunk=CHUNK, numerics="exact", context=256)

    @cache
    def build(**fields: Any) -> TritonBackend:
        weights = checkpoint.load(small, geometry, device="cpu", banked=False)
        effective = replace(config, **fields).effective(geometry, cores=1)
        return TritonBackend(geometry, weights, effective, Operations.oracles())

    return build


@pytest.fixture(scope="module")
def plain_torch(small: Path) -> Callable[[str], Backend]:
    """The torch backend of the same model."""
    engine = Engine.load(small, EngineConfig(prefill_chunk=CHUNK))

    def of(numerics: str) -> Backend:
        engine.reconfigure(EngineConfig(prefill_chunk=CHUNK, numerics=numerics))
        return engine.backend

    return of


def say(
    by: Backend, ids: Sequence[int], count: int, *, drafting: bool = True, **sampling: Any
) -> list[int]:
    commits = rounds(by, drafting, list(ids), count, Sampler(Sampling(**sampling)), set())
    return [token for commit in commits for token in commit.tokens]


@pytest.mark.parametrize("policy", ["fixed", "margin"])
def test_a_second_sequence_finds_its_launches_made_like_the_first(make: Make, policy: str) -> None:
    by = make(verify_policy=policy)
    by.warm_up()
    first, second = (by.seat(state)[1] for state in (by.new_state(), by.new_state()))
    rounds = {("step", 1, False, drafting) for drafting in (False, True)}
    kinds = {"round"} if policy == "fixed" else {"step", "draft"}
    assert second.made >= rounds
    assert {kind for kind, *_ in second.made if kind != "step"} == kinds - {"step"}
    assert second.made == first.made
    assert say(by, TEXT[:9], 12)
    used = by.seat(by.new_state())[1]  # the sequence before has left its place
    assert used.made == first.made


# ------------------------------------------------------------------ what is committed


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("numerics", ["exact", "cache"])
def test_it_says_what_the_torch_backend_says(
    make: Make, plain_torch: Callable[[str], Backend], length: int, numerics: str
) -> None:
    told = say(plain_torch(numerics), TEXT[:length], 12)
    by = make(numerics=numerics)
    assert say(by, TEXT[:length], 12) == told
    assert say(by, TEXT[:length], 12, drafting=False) == told


def test_the_embedded_model_says_on_it_what_it_says_on_torch() -> None:
    geometry = Geometry.load(TINY)
    ids = [0, *Tokenizer.load(TINY).encode("The capital of France is")]
    config = EngineConfig(backend="triton", numerics="exact", context=64).effective(geometry, 1)
    weights = checkpoint.load(TINY, geometry, device="cpu", banked=False)
    by = TritonBackend(geometry, weights, config, Operations.oracles())
    engine = Engine.load(TINY, EngineConfig(numerics="exact"))
    assert say(by, ids, 20) == say(engine.backend, ids, 20)


@pytest.mark.parametrize("place", ["router", "stream"])
def test_where_the_shared_expert_runs_changes_no_token(make: Make, place: str) -> None:
    told = say(make(), TEXT[:9], 16)
    assert say(make(shared_expert=place), TEXT[:9], 16) == told


@pytest.mark.parametrize("policy", ["margin", "confidence"])
def test_a_verify_policy_changes_no_token(make: Make, policy: str) -> None:
    told = say(make(), TEXT[:9], 16, drafting=False)
    assert say(make(verify_policy=policy), TEXT[:9], 16) == told


def test_sampled_tokens_do_not_depend_on_drafts(make: Make) -> None:
    told = [
        say(make(), TEXT[:9], 12, temperature=0.8, seed=seed, drafting=False) for seed in range(3)
    ]
    assert len({tuple(tokens) for tokens in told}) == 3
    for seed, tokens in enumerate(told):
        assert say(make(), TEXT[:9], 12, temperature=0.8, seed=seed) == tokens


def test_what_only_the_host_can_choose_is_chosen_as_on_the_torch_backend(
    make: Make, plain_torch: Callable[[str], Backend]
) -> None:
    asked: dict[str, Any] = {
        "temperature": 0.9, "seed": 4, "top_p": 0.9, "frequency_penalty": 0.3
    }  # fmt: skip
    told = say(plain_torch("exact"), TEXT[:9], 16, **asked)
    assert say(make(), TEXT[:9], 16, **asked) == told
    assert say(make(), TEXT[:9], 16, drafting=False, **asked) == told


def test_rows_of_one_forward_score_as_one_after_the_other(make: Make) -> None:
    by = make()
    state = by.new_state()
    by.prefill(state, TEXT[:9], drafting=False)
    before = state.snapshot()
    together = by.forward(state, TEXT[9:15], keep=0)
    assert state.equals(before) is None
    for row, token in enumerate(TEXT[9:15]):
        alone = by.forward(state, [token], keep=1)
        torch.testing.assert_close(alone[0], together[row], rtol=1e-4, atol=1e-4)
    assert state.length == 15


def test_logits_that_are_not_finite_are_an_error(make: Make) -> None:
    by = make(margin_threshold=2.0)  # of its own: its weights are spoilt
    state = state_after(by, TEXT[:9])
    by.layers.weights.hc_head.norm[0] = torch.nan
    with pytest.raises(NumericsError, match="not finite"):
        by.round(state, Sampler(Sampling()), TEXT[9], room=8)
    with pytest.raises(NumericsError, match="not finite"):
        say(by, TEXT[:9], 4)


# ------------------------------------------------------------------ what is left behind


@pytest.mark.parametrize("start", [3, 14, 122, 127])
def test_a_partial_accept_leaves_the_state_of_plain_decoding(make: Make, start: int) -> None:
    """For every number of confirmed drafts, around the ends of windows and of the ring.

    Products of plain PyTorch depend on the rows beside them in the last bit; what is left of a
    rejected row would be another number altogether.
    """
    by = make()
    text = TEXT[:start] + say(by, TEXT[:start], 8, drafting=False)
    plain = state_after(by, text[:start])
    base = plain.snapshot()
    plains = []
    for token in text[start : start + 6]:
        assert by.confirm(plain, token, []).tokens == [text[plain.length]]
        plains.append({name: t.clone() for name, t in plain.tensors().items()})
    state = by.new_state()
    for hits in range(6):
        state.restore(base)
        drafts = text[start + 1 : start + 6]
        if hits < 5:
            drafts[hits] = (drafts[hits] + 1) % 480
        done = by.confirm(state, text[start], drafts)
        assert (done.hits, done.tokens) == (hits, text[start + 1 : start + 2 + hits])
        assert state.length == state.draft_length == start + 1 + hits
        assert int(state.store.position) == state.length
        for name, tensor in state.tensors().items():
            torch.testing.assert_close(tensor, plains[hits][name], rtol=1e-3, atol=1e-4, msg=name)


def state_after(by: TritonBackend, ids: Sequence[int]) -> State:
    state = by.new_state()
    by.prefill(state, ids)
    return state


@pytest.mark.parametrize("length", [1, 33, 131])
def test_its_states_are_those_of_the_plain_backend(make: Make, small: Path, length: int) -> None:
    """What heads are captured from: every position's taps, and what the output head reads there."""
    plain = EngineSource(small, EngineConfig(prefill_chunk=CHUNK, numerics="exact", context=256))
    theirs = DeviceSource(make())
    mine, other = (source.run(TEXT[:length]) for source in (theirs, plain))
    assert mine.taps.shape == (length, other.taps.shape[1])
    torch.testing.assert_close(mine.taps, other.taps, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(mine.hidden, other.hidden, rtol=2e-3, atol=2e-3)
    # The output head is in BF16 there, and so is what it reads.
    scored, plainly = theirs.logits(mine.hidden), plain.logits(other.hidden)
    assert (scored - plainly).abs().max() < 0.01 * plainly.abs().max() + 0.05
    assert prove_deterministic(theirs, 40)


@pytest.mark.parametrize("length", [32, 33, 129])
@pytest.mark.parametrize("fields", [{}, {"numerics": "cache", "key_format": "packed"}], ids=str)
def test_a_remembered_beginning_leaves_the_state_of_a_cold_run(
    make: Make, length: int, fields: dict[str, str]
) -> None:
    by, ids = make(**fields), TEXT[:length]
    cache = PrefixCache(1 << 30)
    first, cold, hit = by.new_state(), by.new_state(), by.new_state()
    by.prefill(first, ids, cache.open("it", ids, CHUNK))
    logits = by.prefill(cold, ids)
    assert cache.open("it", ids, CHUNK).restore(hit) == (length - 1) // CHUNK * CHUNK
    assert torch.equal(by.prefill(hit, ids), logits)
    assert hit.equals(cold) is None


@pytest.mark.parametrize("length", LENGTHS)
def test_packed_rows_change_no_bit_of_what_is_said(make: Make, length: int) -> None:
    plain, packed = make(numerics="cache"), make(numerics="cache", key_format="packed")
    ends = []
    for by in (plain, packed):
        state = by.new_state()
        told = [by.prefill(state, TEXT[:length])]
        told.append(by.forward(state, TEXT[length : length + 6], keep=3))
        token = TEXT[length + 3]
        for _ in range(8):
            done = by.round(state, Sampler(Sampling()), token, room=8)
            token = done.tokens[-1]
            told.append(torch.tensor(done.tokens))
        told.append(by.forward(state, [token], keep=0))
        ends.append((told, rows_of(state)))
    for a, b in zip(*(told for told, _ in ends), strict=True):
        assert torch.equal(a, b)
    for (name, a), b in zip(ends[0][1].items(), ends[1][1].values(), strict=True):
        assert torch.equal(a, b), name


def rows_of(state: State) -> dict[str, Tensor]:
    """Compressed rows by name and layer, as numbers."""
    return {
        f"{name} of {layer}": as_plain(pool.rows(layer), torch.float32)
        for name, pool in state.pools.items()
        for layer in pool.layers
    }


def test_the_embedded_model_says_the_same_with_packed_rows() -> None:
    geometry = Geometry.load(TINY)
    ids = [0, *Tokenizer.load(TINY).encode("Once upon a time there was a small")]
    weights = checkpoint.load(TINY, geometry, device="cpu", banked=False)
    told = []
    for form in ("plain", "packed"):
        config = EngineConfig(backend="triton", context=128, key_format=form)
        by = TritonBackend(geometry, weights, config.effective(geometry, 1), Operations.oracles())
        told.append(say(by, ids, 24))
    assert told[0] == told[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_rows_take_the_bytes_that_the_inventory_counts(dtype: torch.dtype) -> None:
    geometry = Geometry.named("k160")
    form = "mixed" if dtype == torch.bfloat16 else "mixed float32"
    rows, keys = row_bytes(geometry, form)
    store = Store(geometry, 1024, dtype, torch.device("meta"), packed=True)
    found = {name: pool.row_bytes for name, pool in store.pools.items()}
    assert found == {"rows.4": rows, "rows.128": rows, "keys.4": keys}
    assert store.named["window"][0, 0].nbytes == window_row_bytes(geometry, form)
    plain = size_bytes(geometry, 1 << 17, dtype)
    packed = size_bytes(geometry, 1 << 17, dtype, packed=True)
    assert plain - packed > 0.4 * (1 << 17) * growth(geometry, "bf16")


def test_a_state_is_filled_with_numbers_and_counted_in_either_format(make: Make) -> None:
    counted = []
    for form in ("plain", "packed"):
        by = make(numerics="cache", key_format=form)
        state = by.new_state()
        fill(state, 200, torch.Generator().manual_seed(1))
        assert all(rows.isfinite().all() and rows.any() for rows in rows_of(state).values())
        assert by.forward(state, [5, 6], keep=0).isfinite().all()
        counted.append(state_bytes(by.geometry, 200, state))
    assert counted[1] < counted[0]


def test_the_memory_that_is_asked_for_follows_the_format_of_rows() -> None:
    geometry = Geometry.named("k160")
    config = EngineConfig(backend="triton", dtype="bfloat16", context=131072)
    plain, packed = (
        memory.needed_bytes(geometry, replace(config, key_format=form))
        for form in ("plain", "packed")
    )
    held = [size_bytes(geometry, 131072, torch.bfloat16, packed=p) for p in (False, True)]
    assert plain - packed == held[0] - held[1]


def test_the_memory_of_a_state_that_is_gone_is_used_again(make: Make) -> None:
    by = make()
    state = state_after(by, TEXT[:9])
    place = state.store.arena.data_ptr()
    other = by.new_state()
    assert other.store.arena.data_ptr() != place
    del state
    fresh = by.new_state()
    assert fresh.store.arena.data_ptr() == place
    assert fresh.equals(other) is None


def test_a_round_waits_for_the_device_once(make: Make) -> None:
    by = make()
    state = state_after(by, TEXT[:9])
    before, token = by.tally.syncs, 5
    for _ in range(3):
        token = by.round(state, Sampler(Sampling()), token, room=8).tokens[-1]
    assert by.tally.syncs == before + 3


# ------------------------------------------------------------------ what is refused


def test_fields_of_the_other_backend_are_refused() -> None:
    geometry = Geometry.load(TINY)
    with pytest.raises(ConfigError, match="moe is a choice of the torch backend"):
        EngineConfig(backend="triton", moe="dense").effective(geometry, 1)
    with pytest.raises(ConfigError, match="graph is a choice of the triton backend"):
        EngineConfig(graph="off").effective(geometry, 1)
    with pytest.raises(ConfigError, match="key_format is a choice of the triton backend"):
        EngineConfig(key_format="packed").effective(geometry, 1)
    with pytest.raises(ConfigError, match="numerics 'reference'"):
        EngineConfig(backend="triton", numerics="reference").effective(geometry, 1)


def test_what_one_backend_ignores_is_no_part_of_its_configuration() -> None:
    torch_fields, triton_fields = (
        set(EngineConfig(backend=name).canonical()) for name in ("torch", "triton")
    )
    assert torch_fields - triton_fields == set(OF_TORCH)
    assert triton_fields - torch_fields == set(OF_TRITON)


def test_another_backend_needs_a_load_of_its_own(small_engine: Engine) -> None:
    with pytest.raises(ConfigError, match="needs a load of its own"):
        small_engine.reconfigure(EngineConfig(backend="triton"))


def test_a_machine_without_a_gpu_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(DeviceError, match=r"needs a GPU.*backend 'torch'"):
        Engine.load(TINY, EngineConfig(backend="triton"))


def test_what_a_gpu_lacks_is_said() -> None:
    requirement.check_capability("H", (9, 0))
    with pytest.raises(DeviceError, match=r"8\.9 or later\); A100 has 8\.0"):
        requirement.check_capability("A100", (8, 0))
    requirement.check_driver((13, 0), (12, 8))
    requirement.check_driver(None, (12, 8))
    with pytest.raises(DeviceError, match=r"supports CUDA 11\.4.*CUDA 12\.8: update the driver"):
        requirement.check_driver((11, 4), (12, 8))


def test_the_memory_that_a_model_needs_is_known_before_it_is_loaded() -> None:
    geometry = synthetic.geometry("k160")
    config = EngineConfig(backend="triton", dtype="bfloat16", context=131072)
    needed = memory.needed_bytes(geometry, config.effective(geometry, 1))
    weights, places = allocate(geometry, "meta")
    assert len(places) == 45821  # tensors of the real checkpoint
    assert weights.size()["weights_bytes"] < needed < 112 << 30
    with pytest.raises(DeviceError, match=r"needs 10\d\.\d GiB of GPU memory at context 131072"):
        memory.check_free(needed, 80 << 30, 80 << 30, 131072)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"layers.0.attn.q_norm.weight": None}, "lacks the tensor layers.0.attn.q_norm.weight"),
        ({"layers.9.x": torch.ones(1)}, "tensors this model does not use: layers.9.x"),
        ({"norm.weight": torch.ones(3, dtype=torch.bfloat16)}, "norm.weight has shape"),
        ({"head.weight": torch.ones(4096, 256)}, "head.weight is torch.float32, not torch.bfl"),
        ({"hc_head_base": torch.full((4,), torch.nan)}, "hc_head_base .* not finite"),
        (
            {"layers.0.attn.wkv.weight": torch.full((128, 256), 448.0).to(torch.float8_e4m3fn)},
            None,
        ),
        (
            {
                "layers.0.attn.wkv.weight": torch.full((128, 256), 127, dtype=torch.uint8).view(
                    torch.float8_e4m3fn
                )
            },
            "wkv.weight cannot be used: .* NaN",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_by_name(
    tmp_path: Path, change: dict[str, Tensor | None], sentence: str | None
) -> None:
    held: dict[str, Tensor | None] = {**load_file(TINY / "model.safetensors"), **change}
    shutil.copy(TINY / "config.json", tmp_path)
    save_file({n: t for n, t in held.items() if t is not None}, tmp_path / "model.safetensors")
    if sentence is None:
        checkpoint.load(tmp_path, Geometry.load(TINY), device="cpu")
        return
    with pytest.raises(CheckpointError, match=sentence):
        checkpoint.load(tmp_path, Geometry.load(TINY), device="cpu")


def test_weights_of_no_checkpoint_keep_the_size_of_what_they_multiply() -> None:
    weights = synthetic.generate(Geometry.load(TINY), device="cpu", banked=False)
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    block = weights.layers[0]
    down = fp8_linear.multiply(x, block.attention.down.codes, block.attention.down.scale)
    assert 0.5 < float(down.std()) < 2.0
    assert isinstance(block.moe.w13, Quantised)
    wide = decode_mxfp4(block.moe.w13.codes[0], block.moe.w13.scale[0])
    assert 0.5 < float((x @ wide.t()).std()) < 2.0
    table = weights.layers[0].moe.table
    assert table is not None
    assert all(len(set(row)) == len(row) for row in table.tolist())
