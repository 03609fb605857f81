"""Everything the engine refuses is refused in one clear sentence of its own error tree."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoints
import pytest
import torch
from checkpoints import Configure
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.checkpoint import checkpoint_sha256, load_weights
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import (
    CheckpointError,
    ConfigError,
    ContextOverflow,
    EngineError,
    NumericsError,
    PromptError,
)
from engine.geometry import Geometry

Disk = dict[str, Tensor]


def refusal(kind: type[EngineError], act: Callable[[], object]) -> str:
    """The sentence with which `act` is refused; it must be one line that ends like a sentence."""
    with pytest.raises(EngineError) as caught:
        act()
    assert type(caught.value) is kind, repr(caught.value)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    assert len(sentence) > 20
    return sentence


@pytest.fixture(scope="module")
def disk() -> Disk:
    """The tensors of a checkpoint as they lie on disk; tests change copies."""
    return checkpoints.encoded(checkpoints.random_tensors(checkpoints.QUICK, 1))


def load(folder: Path) -> Engine:
    return Engine.load(folder, EngineConfig.parse({"threads": 1, "moe": "dense"}))


def refused_disk(folder: Path, disk: Disk) -> str:
    """The sentence about a checkpoint that holds `disk`."""
    checkpoints.write(folder, checkpoints.QUICK, disk)
    return refusal(CheckpointError, lambda: load(folder))


# ------------------------------------------------------------------ the engine's configuration


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"draft_widht": 3}, "Unknown configuration field 'draft_widht'; known fields: acc"),
        ({"draft_width": -1}, "draft_width must be an integer from 0 to 8; got -1"),
        ({"draft_width": 2.5}, "draft_width must be an integer"),
        ({"draft_width": True}, "draft_width must be an integer"),
        ({"draft_width": "5"}, "draft_width must be an integer"),
        ({"row_tile": 9}, "row_tile must be an integer from 1 to 8; got 9"),
        ({"moe": "sparse"}, "moe must be one of loop, fused, dense; got 'sparse'"),
        ({"moe": None}, "moe must be one of"),
        ({"verify_policy": 1}, "verify_policy must be one of fixed, margin, confidence; got 1"),
        ({"confidence_threshold": 1.5}, "confidence_threshold must be a number from 0 to 1"),
        ({"margin_threshold": math.nan}, "margin_threshold must be a number"),
        ({"prefill_chunk": 0}, "prefill_chunk must be an integer from 1"),
        ({"numerics": "fast"}, "numerics must be one of exact, cache, reference; got 'fast'"),
    ],
)
def test_impossible_fields_are_named(fields: dict[str, Any], words: str) -> None:
    assert words in refusal(ConfigError, lambda: EngineConfig.parse(fields))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"draft_width": 6}, "draft_width 6 exceeds the head's trained block of 5"),
        ({"context": 4096}, "context 4096 exceeds the checkpoint's max_position_embeddings 2048"),
        ({"cache_format": "packed", "numerics": "exact"}, "numerics 'exact' forbids"),
        (
            {"backend": "triton", "key_format": "packed", "numerics": "exact"},
            "key_format 'packed' stores rounded rows, which numerics 'exact' forbids",
        ),
        ({"numerics": "reference"}, "groups of 128, which the widths 64, 64, 64, 64"),
        ({"dtype": "bfloat16"}, "dtype bfloat16 needs a load of its own"),
    ],
)
def test_what_the_model_cannot_do_is_refused_at_once(
    quick_engine: Engine, configure: Configure, fields: dict[str, Any], words: str
) -> None:
    before = quick_engine.config
    sentence = refusal(ConfigError, lambda: quick_engine.reconfigure(configure(**fields)))
    assert words in sentence
    assert quick_engine.config == before


def test_impossible_requests_are_refused_before_the_weights_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(checkpoints.QUICK))
    wide = EngineConfig.parse({"draft_width": 6})
    assert "trained block" in refusal(ConfigError, lambda: Engine.load(tmp_path, wide))


def test_a_bias_table_too_large_for_memory_is_refused(
    quick: Path, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.draft._TABLE_LIMIT_BYTES", 1000)
    table = configure(moe="dense", markov="table")
    assert "markov 'table'" in refusal(ConfigError, lambda: Engine.load(quick, table))


# ------------------------------------------------------------------ config.json


def parse(**changes: Any) -> Callable[[], Geometry]:
    raw = {k: v for k, v in (checkpoints.SMALL | changes).items() if v is not ...}
    return lambda: Geometry.parse(raw)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention_softcap": 30.0}, "fields this engine does not know: attention_softcap"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu' is not implemented; only 'silu' is"),
        ({"scoring_func": "softmax"}, "scoring_func = 'softmax' is not implemented"),
        ({"norm_topk_prob": False}, "norm_topk_prob = False is not implemented"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings = True is not implemented"),
        ({"num_key_value_heads": 2}, "num_key_value_heads = 2 is not implemented"),
        ({"n_shared_experts": 2}, "n_shared_experts = 2 is not implemented"),
        ({"expert_dtype": "bf16"}, "expert_dtype = 'bf16' is not implemented"),
        ({"hidden_size": ...}, "lacks the field hidden_size"),
        ({"hidden_size": 128.5}, "hidden_size = 128.5 is not a valid int"),
        ({"hidden_size": "wide"}, "hidden_size = 'wide' is not a valid int"),
        ({"hc_eps": "small"}, "hc_eps = 'small' is not a valid float"),
        ({"compress_ratios": 4}, "compress_ratios = 4 is not a valid"),
        ({"compress_ratios": [0, 0, 4, 128, 4, 8]}, "at least one DSpark block"),
        ({"compress_ratios": [0, 0, 4, 128, 4, 2, 0]}, "0, 4 or a larger ratio"),
        ({"compress_ratios": [0, 0, 4, 128, 4, 8, 4]}, "must be window-only"),
        ({"rope_scaling": ...}, "lacks rope_scaling"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling of type 'linear' is not implemented"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling is incomplete"),
        (
            {"rope_scaling": checkpoints.SMALL["rope_scaling"] | {"mscale": 1.0}},
            "rope_scaling has unknown fields ['mscale']",
        ),
        ({"quantization_config": ...}, "lacks quantization_config"),
        ({"quantization_config": {"fmt": "e5m2"}}, "quantization_config.fmt = 'e5m2'"),
        ({"quantization_config": {"weight_block_size": [64, 64]}}, "weight_block_size [64, 64]"),
        ({"qk_rope_head_dim": 63}, "qk_rope_head_dim must be even"),
        ({"head_dim": 160}, "head_dim - qk_rope_head_dim must be a multiple of 64"),
        ({"index_head_dim": 96}, "index_head_dim must be a power of two"),
        ({"o_groups": 3}, "num_attention_heads must be a multiple of o_groups"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok exceeds n_routed_experts"),
        ({"dspark_target_layer_ids": [6]}, "dspark_target_layer_ids must name backbone layers"),
        ({"dspark_noise_token_id": 512}, "dspark_noise_token_id is outside the vocabulary"),
        ({"eos_token_id": 512}, "eos_token_id is outside the vocabulary"),
        ({"bos_token_id": 512}, "bos_token_id is outside the vocabulary"),
        ({"dspark_block_size": 0}, "dspark_block_size must be at least 1"),
        ({"o_groups": 0}, "o_groups must be at least 1; got 0"),
        ({"sliding_window": -1}, "sliding_window must be at least 1; got -1"),
        ({"num_hash_layers": -1}, "num_hash_layers must be at least 0; got -1"),
        ({"dspark_target_layer_ids": [-1]}, "dspark_target_layer_ids must be at least 0"),
        ({"vocab_size": math.inf}, "vocab_size = inf is not a valid int"),
        ({"index_topk": 10**23}, f"index_topk = {10**23} is not a valid int"),
        ({"rope_theta": 0}, "rope_theta must be above 0; got 0.0"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps = nan is not a valid float"),
        ({"swiglu_limit": True}, "swiglu_limit = True is not a valid float"),
        (
            {"rope_scaling": checkpoints.SMALL["rope_scaling"] | {"factor": math.inf}},
            "rope_scaling is incomplete or malformed: inf",
        ),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(value),
)
def test_a_config_that_is_not_implemented_is_refused_by_field(
    changes: dict[str, Any], words: str
) -> None:
    sentence = refusal(CheckpointError, parse(**changes))
    assert "config.json" in sentence
    assert words in sentence


def test_descriptive_fields_are_accepted() -> None:
    parse(transformers_version="5.0", pad_token_id=3, initializer_range=0.02, use_cache=False)()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1, 2]", "3", '{"a": }', "\xff", "[" * 9999, "1" * 9999],
    ids=lambda text: text[:8],
)
def test_a_broken_config_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    sentence = refusal(CheckpointError, lambda: load(tmp_path))
    assert "config.json" in sentence
    assert "JSON" in sentence


def test_a_config_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    assert "Is a directory" in refusal(CheckpointError, lambda: load(tmp_path))


def test_a_folder_without_config_is_no_checkpoint(tmp_path: Path) -> None:
    assert "has no config.json" in refusal(CheckpointError, lambda: load(tmp_path))
    assert "has no config.json" in refusal(CheckpointError, lambda: load(tmp_path / "nowhere"))
    (tmp_path / "file").touch()
    assert "has no config.json" in refusal(CheckpointError, lambda: load(tmp_path / "file"))


# ------------------------------------------------------------------ tensors


def test_a_good_checkpoint_loads_in_one_file_and_in_shards(tmp_path: Path, disk: Disk) -> None:
    checkpoints.write(tmp_path / "one", checkpoints.QUICK, disk)
    checkpoints.write(tmp_path / "three", checkpoints.QUICK, disk, shards=3)
    one, three = (load(tmp_path / name).weights for name in ("one", "three"))
    assert torch.equal(one.layers[1].moe.w2, three.layers[1].moe.w2)
    assert torch.equal(one.draft.main_proj, three.draft.main_proj)


@pytest.mark.parametrize(
    "name",
    [
        "embed.weight",
        "layers.0.attn.indexer.compressor.ape",
        "layers.0.ffn.gate.tid2eid",
        "layers.1.ffn.experts.3.w2.weight",
        "layers.1.ffn.gate.bias",
        "mtp.0.ffn.shared_experts.w3.weight",
        "mtp.0.markov_head.markov_w1.weight",
        "hc_head_scale",
    ],
)
def test_a_missing_tensor_is_named(tmp_path: Path, disk: Disk, name: str) -> None:
    gone = {name, name.removesuffix("weight") + "scale"}
    left = {n: t for n, t in disk.items() if n not in gone}
    assert f"lacks the tensor {name}." in refused_disk(tmp_path, left)


@pytest.mark.parametrize(
    "name", ["layers.7.attn_norm.weight", "mtp.0.embed.weight", "layers.1.ffn.gate.tid2eid", "x"]
)
def test_an_extra_tensor_is_named(tmp_path: Path, disk: Disk, name: str) -> None:
    sentence = refused_disk(tmp_path, disk | {name: torch.zeros(4)})
    assert f"does not use: {name}." in sentence


def test_many_extra_tensors_are_counted(tmp_path: Path, disk: Disk) -> None:
    sentence = refused_disk(tmp_path, disk | {f"extra.{i}": torch.zeros(1) for i in range(9)})
    assert "extra.0, extra.1, extra.2 and 6 more" in sentence


def test_a_tensor_in_two_shards_is_named(tmp_path: Path, disk: Disk) -> None:
    checkpoints.write(tmp_path, checkpoints.QUICK, disk, shards=2)
    again = {"norm.weight": disk["norm.weight"]}
    for shard in sorted(tmp_path.glob("model-*.safetensors")):
        save_file(load_file(shard) | again, shard)
    sentence = refusal(CheckpointError, lambda: load(tmp_path))
    assert sentence == "The tensor norm.weight appears in two shards."


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("norm.weight", (65,)),
        ("layers.1.attn.attn_sink", (3,)),
        ("head.weight", (255, 64)),
        ("layers.0.ffn.gate.tid2eid", (256, 3)),
    ],
)
def test_a_wrong_shape_is_named_with_the_right_one(
    tmp_path: Path, disk: Disk, name: str, shape: tuple[int, ...]
) -> None:
    wrong = disk | {name: torch.zeros(shape, dtype=disk[name].dtype)}
    sentence = refused_disk(tmp_path, wrong)
    assert f"The tensor {name} has shape {shape}" in sentence
    assert str(tuple(disk[name].shape)) in sentence


FP8 = "layers.1.attn.wkv"
FP4 = "layers.1.ffn.experts.0.w1"


@pytest.mark.parametrize("name", [FP8, FP4])
def test_a_quantised_tensor_needs_its_scale(tmp_path: Path, disk: Disk, name: str) -> None:
    left = {n: t for n, t in disk.items() if n != name + ".scale"}
    assert f"{name}.weight has no {name}.scale" in refused_disk(tmp_path, left)


def test_a_scale_needs_its_tensor(tmp_path: Path, disk: Disk) -> None:
    stray = disk | {"layers.1.attn_norm.scale": disk[FP8 + ".scale"].clone()}
    assert "layers.1.attn_norm.scale belongs to no quantised" in refused_disk(tmp_path, stray)


@pytest.mark.parametrize("name", [FP8, FP4])
def test_a_scale_of_the_wrong_shape_is_refused(tmp_path: Path, disk: Disk, name: str) -> None:
    scale = disk[name + ".scale"].view(torch.uint8)
    wide = torch.cat((scale, scale)).view(torch.float8_e8m0fnu)
    sentence = refused_disk(tmp_path, disk | {name + ".scale": wide})
    assert f"The scale of {name}.weight has shape {tuple(wide.shape)}" in sentence


def test_a_scale_in_another_format_is_refused(tmp_path: Path, disk: Disk) -> None:
    scale = disk[FP8 + ".scale"].float()
    assert "not E8M0" in refused_disk(tmp_path, disk | {FP8 + ".scale": scale})


def test_a_type_the_format_does_not_have_is_refused(tmp_path: Path, disk: Disk) -> None:
    sentence = refused_disk(tmp_path, disk | {"norm.weight": disk["norm.weight"].double()})
    assert "norm.weight has the unexpected type torch.float64" in sentence


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_named(tmp_path: Path, disk: Disk, value: float) -> None:
    for name in ("norm.weight", "layers.1.hc_ffn_base"):
        bad = disk[name].clone()
        bad[0] = value
        sentence = refused_disk(tmp_path, disk | {name: bad})
        assert sentence == f"The tensor {name} holds values that are not finite."


def test_quantised_weights_that_are_not_finite_are_named(tmp_path: Path, disk: Disk) -> None:
    weight = disk[FP8 + ".weight"].clone()
    weight.view(torch.uint8)[0, 0] = 0x7F  # the NaN of E4M3
    scale = disk[FP4 + ".scale"].clone()
    scale.view(torch.uint8)[0, 0] = 255  # the NaN of E8M0
    for name, tensor in ((FP8 + ".weight", weight), (FP4 + ".scale", scale)):
        sentence = refused_disk(tmp_path, disk | {name: tensor})
        assert "not finite" in sentence
        assert name.removesuffix("scale").removesuffix("weight") in sentence


# ------------------------------------------------------------------ shards


@pytest.mark.parametrize("left", [0, 5, 1000, -1])
def test_a_truncated_shard_is_named(tmp_path: Path, disk: Disk, left: int) -> None:
    path = checkpoints.write(tmp_path, checkpoints.QUICK, disk) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:left])
    sentence = refusal(CheckpointError, lambda: load(tmp_path))
    assert str(path) in sentence
    assert "damaged or truncated" in sentence


def test_a_missing_shard_is_named(tmp_path: Path, disk: Disk) -> None:
    checkpoints.write(tmp_path, checkpoints.QUICK, disk, shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    sentence = refusal(CheckpointError, lambda: load(tmp_path))
    assert "lacks the shard model-00002-of-00003.safetensors named by its index" in sentence


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", "\x80", '{"weight_map": 3}', '{"weight_map": {"a": 1}}']
)
def test_a_broken_shard_index_is_refused(tmp_path: Path, disk: Disk, text: str) -> None:
    checkpoints.write(tmp_path, checkpoints.QUICK, disk, shards=2)
    (tmp_path / "model.safetensors.index.json").write_bytes(text.encode("latin-1"))
    sentence = refusal(CheckpointError, lambda: load(tmp_path))
    assert "is not a valid shard index" in sentence


def test_a_folder_without_tensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(checkpoints.QUICK))
    assert "holds no model*.safetensors" in refusal(CheckpointError, lambda: load(tmp_path))


def test_loaded_weights_do_not_follow_the_file(tmp_path: Path, disk: Disk) -> None:
    """Else a checkpoint that is replaced in place changes, or kills, an engine that runs."""
    path = checkpoints.write(tmp_path, checkpoints.QUICK, disk) / "model.safetensors"
    engine = load(tmp_path)
    before = list(engine.generate([5, 6, 7], max_new_tokens=12))
    size = path.stat().st_size
    with path.open("r+b") as stream:
        stream.write(b"\x3f" * size)
    after = list(engine.generate([5, 6, 7], max_new_tokens=12))
    assert [c.tokens for c in after] == [c.tokens for c in before]


# ------------------------------------------------------------------ a separate draft head


def test_a_separate_head_replaces_the_checkpoint_s_own(tmp_path: Path, disk: Disk) -> None:
    checkpoints.write(tmp_path / "model", checkpoints.QUICK, disk)
    other = checkpoints.encoded(checkpoints.random_tensors(checkpoints.QUICK, 2))
    mtp = {n: t for n, t in other.items() if n.startswith("mtp.")}
    checkpoints.write(tmp_path / "head", checkpoints.QUICK, mtp)
    geometry = Geometry.load(tmp_path / "model")
    own = load_weights(tmp_path / "model", geometry)
    swapped = load_weights(tmp_path / "model", geometry, head=tmp_path / "head")
    assert torch.equal(own.head, swapped.head)
    assert not torch.equal(own.draft.main_proj, swapped.draft.main_proj)
    assert checkpoint_sha256(tmp_path / "model") != checkpoint_sha256(
        tmp_path / "model", tmp_path / "head"
    )
    told = []
    for head in (None, tmp_path / "head"):
        engine = Engine.load(
            tmp_path / "model", EngineConfig.parse({"threads": 1, "moe": "dense"}), head=head
        )
        commits = list(engine.generate([5, 6, 7, 8], max_new_tokens=40))
        told.append([t for c in commits for t in c.tokens])
    assert told[0] == told[1]  # another head drafts otherwise and changes no token


def test_a_head_with_foreign_or_missing_tensors_is_refused(tmp_path: Path, disk: Disk) -> None:
    folder = checkpoints.write(tmp_path / "model", checkpoints.QUICK, disk)
    mtp = {n: t for n, t in disk.items() if n.startswith("mtp.")}
    foreign = mtp | {"norm.weight": disk["norm.weight"]}
    lacking = {n: t for n, t in mtp.items() if "confidence" not in n}
    for i, (tensors, words) in enumerate(
        (
            (foreign, "holds norm.weight, which is not an mtp.* tensor"),
            (lacking, "lacks the tensor"),
        )
    ):
        head = checkpoints.write(tmp_path / f"head{i}", checkpoints.QUICK, tensors)
        sentence = refusal(CheckpointError, lambda head=head: Engine.load(folder, head=head))  # type: ignore[misc]
        assert words in sentence


def test_the_hash_of_a_checkpoint_sees_every_byte_and_name(tmp_path: Path, disk: Disk) -> None:
    folder = checkpoints.write(tmp_path / "a", checkpoints.QUICK, disk)
    first = checkpoint_sha256(folder)
    assert re.fullmatch("[0-9a-f]{64}", first)
    assert checkpoint_sha256(checkpoints.write(tmp_path / "b", checkpoints.QUICK, disk)) == first
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    assert checkpoint_sha256(folder) != first
    checkpoints.write(tmp_path / "b", checkpoints.QUICK | {"hc_eps": 2e-6}, disk)
    assert checkpoint_sha256(tmp_path / "b") != first


# ------------------------------------------------------------------ requests


def test_an_empty_prompt_is_refused(quick_engine: Engine) -> None:
    sentence = refusal(PromptError, lambda: quick_engine.generate([], max_new_tokens=5))
    assert sentence == "The prompt is empty; it needs at least one token."


@pytest.mark.parametrize("stray", [-1, 256, 10**9])
def test_a_token_outside_the_vocabulary_is_named(quick_engine: Engine, stray: int) -> None:
    sentence = refusal(PromptError, lambda: quick_engine.generate([5, stray, 7], max_new_tokens=5))
    assert f"token {stray}, outside the vocabulary of 256" in sentence


@pytest.mark.parametrize("count", [0, -3])
def test_at_least_one_token_must_be_asked_for(quick_engine: Engine, count: int) -> None:
    sentence = refusal(PromptError, lambda: quick_engine.generate([5], max_new_tokens=count))
    assert f"max_new_tokens must be at least 1; got {count}" in sentence


def test_a_prompt_past_the_context_is_refused_with_the_numbers(
    quick_engine: Engine, configure: Configure
) -> None:
    quick_engine.reconfigure(configure(moe="dense", context=64))
    for prompt, count in ((60, 5), (65, 1), (1, 64)):
        sentence = refusal(
            ContextOverflow,
            lambda p=prompt, c=count: quick_engine.generate([5] * p, max_new_tokens=c),  # type: ignore[misc]
        )
        assert "maximum context length is 64 tokens" in sentence
        assert f"requested {prompt + count} tokens" in sentence


def test_logits_that_are_not_finite_end_the_text_with_an_error(
    tmp_path: Path, configure: Configure
) -> None:
    """Every weight is finite, and a product of them is not."""
    tensors = checkpoints.random_tensors(checkpoints.QUICK, 1)
    tensors["head.weight"] = tensors["head.weight"] * 1e38
    tensors["norm.weight"] = tensors["norm.weight"] * 1e4
    checkpoints.write(tmp_path, checkpoints.QUICK, checkpoints.encoded(tensors))
    engine = load(tmp_path)
    stream = engine.generate([5, 6], max_new_tokens=4)
    assert "not finite" in refusal(NumericsError, lambda: next(iter(stream)))


def test_logits_that_stop_being_finite_are_noticed_in_a_later_round(
    quick: Path, configure: Configure
) -> None:
    engine = load(quick)
    stream = iter(engine.generate([5, 6], max_new_tokens=40))
    next(stream)
    next(stream)
    engine.weights.norm[0] = math.nan
    assert "not finite" in refusal(NumericsError, lambda: next(stream))
