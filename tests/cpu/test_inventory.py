"""What a model weighs: the published figures to the byte, and headers that must agree."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.bench.command import weights_bytes
from engine.checkpoint import load_weights
from engine.config import EngineConfig
from engine.errors import CheckpointError, ConfigError
from engine.geometry import Geometry
from engine.inventory import header
from engine.inventory.account import take
from engine.inventory.command import main
from engine.inventory.floor import Bandwidth, bandwidth
from engine.inventory.memory import growth, held_by_torch, memory, row_bytes
from engine.inventory.part import draft_bytes, expert_bytes, parts, read_bytes
from engine.state import State
from engine.tensors import entries

K160 = Geometry.named("k160")
UNKNOWN = Bandwidth(None, "unknown")


def test_the_full_size_model_has_its_published_tensors_and_bytes() -> None:
    account = take("k160", UNKNOWN)
    assert account.tensors == 45_821
    assert account.stored_bytes == 107_803_320_952
    assert account.read_bytes == 11_183_748_460
    assert account.expert_bytes == expert_bytes(K160) == 13_369_344


def test_every_part_reads_what_the_headers_of_the_real_checkpoint_say() -> None:
    read = {part.kind.name: part.read_bytes for part in parts(K160)}
    assert read["wq_a"] == 180_366_080
    assert read["wkv"] == 90_183_040
    assert read["wq_b"] == read["wo_a"] == read["wo_b"] == 1_442_928_640
    assert read["attention norms and sinks"] == 143_104
    assert read["compressor products"] == 520_093_696
    assert read["compressor ape and norm"] == 5_628_928
    assert read["indexer wq_b"] == 176_171_520
    assert read["indexer weights_proj"] == 11_010_048
    assert read["indexer compressor"] == 88_171_776
    assert read["hyper-connections"] == 135_275_592
    assert read["router"] == 56_386_560
    assert read["shared expert"] == 1_082_196_480
    assert read["routed experts"] == 6 * 43 * 13_369_344
    assert read["head"] == 1_059_061_760
    assert read["token tables"] == 3 * 6 * 8


def test_memory_by_part_is_the_published_one() -> None:
    gib = {name: round(size / 2**30, 2) for name, size in take("k160", UNKNOWN).groups().items()}
    assert gib == {
        "routed experts": 85.66, "draft": 6.53, "attention": 4.28, "shared experts": 1.01,
        "embedding": 0.99, "head": 0.99, "compressors": 0.49, "indexers": 0.26,
        "hyper-connections": 0.13, "router": 0.07, "norms": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "gigabytes"), [(1, 11.18), (2, 14.50), (3, 17.70), (4, 20.77), (5, 23.74), (6, 26.58)]
)
def test_wider_steps_read_the_expected_union_of_experts(rows: int, gigabytes: float) -> None:
    assert read_bytes(parts(K160), K160, rows) / 1e9 == pytest.approx(gigabytes, abs=0.005)


def test_a_draft_reads_at_most_three_gigabytes() -> None:
    draft = draft_bytes(parts(K160), K160)
    assert draft["dense"] == pytest.approx(460e6, rel=0.01)
    assert draft["markov"] == pytest.approx(331e6, rel=0.01)
    assert sum(draft.values()) / 1e9 == pytest.approx(2.97, abs=0.01)


def test_cache_rows_have_their_published_sizes_and_growth() -> None:
    assert row_bytes(K160, "packed") == (584, 68)
    assert growth(K160, "packed") == pytest.approx(3514, abs=1)
    assert memory(K160, 1, "packed").partial / 2**20 == pytest.approx(11.6, abs=0.05)


@pytest.mark.parametrize(("context", "megabytes"), [(8192, 13), (32768, 24), (131072, 68)])
def test_a_token_reads_more_cache_as_the_context_grows(context: int, megabytes: int) -> None:
    assert memory(K160, context, "packed").read / 1e6 == pytest.approx(megabytes, abs=0.5)


def test_the_torch_backends_state_is_counted_without_allocating_it() -> None:
    geometry = Geometry.named("tiny-v4")
    held = State(geometry, EngineConfig(context=512)).size_bytes()
    assert held_by_torch(geometry, 512) == held


def test_the_parts_of_a_loaded_model_add_up_to_the_tensors_that_it_holds(small: Path) -> None:
    geometry = Geometry.load(small)
    elements = sum(entry.size for entry in entries(geometry) if entry.format != "i64")
    tables = sum(entry.size for entry in entries(geometry) if entry.format == "i64")
    weights = load_weights(small, geometry)
    assert weights_bytes(weights) == 4 * elements + 8 * tables


def test_a_checkpoints_headers_agree_with_its_config(small: Path) -> None:
    account = take(small, UNKNOWN)
    held = header.read(small)
    assert account.tensors_from == "config = headers"
    assert account.tensors == len(held)
    assert account.stored_bytes == sum(one.size_bytes for one in held.values())


Change = Callable[[dict[str, torch.Tensor]], None]


def _without(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["layers.0.attn.wq_a.scale"]


def _stray(tensors: dict[str, torch.Tensor]) -> None:
    tensors["layers.0.attn.wq_z.weight"] = torch.zeros(2)


def _wide(tensors: dict[str, torch.Tensor]) -> None:
    tensors["norm.weight"] = tensors["norm.weight"].float()


def _short(tensors: dict[str, torch.Tensor]) -> None:
    tensors["norm.weight"] = tensors["norm.weight"][1:].contiguous()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_without, "No shard holds the tensor layers.0.attn.wq_a.scale"),
        (_stray, "config.json implies no tensor layers.0.attn.wq_z.weight"),
        (_wide, r"norm.weight is F32 \[\d+\] in its shard; config.json implies BF16"),
        (_short, r"norm.weight is BF16 \[\d+\] in its shard; config.json implies BF16"),
    ],
)
def test_a_header_that_disagrees_is_named(
    small: Path, tmp_path: Path, change: Change, sentence: str
) -> None:
    tensors = load_file(small / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    shutil.copy(small / "config.json", tmp_path)
    with pytest.raises(CheckpointError, match=sentence):
        take(tmp_path, UNKNOWN)


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_truncated_shard_is_refused(small: Path, tmp_path: Path, kept: int) -> None:
    content = (small / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(content[:kept])
    shutil.copy(small / "config.json", tmp_path)
    with pytest.raises(CheckpointError, match="damaged or truncated"):
        take(tmp_path, UNKNOWN)


Header = dict[str, dict[str, Any]]


def _typeless(header: Header) -> None:
    del header["norm.weight"]["dtype"]


def _placeless(header: Header) -> None:
    header["norm.weight"]["data_offsets"] = [0]


def _endless(header: Header) -> None:
    header["norm.weight"]["shape"] = [float("inf")]


def _thin(header: Header) -> None:
    start, end = header["norm.weight"]["data_offsets"]
    header["norm.weight"]["data_offsets"] = [start, end - 2]


def _shared(header: Header) -> None:
    one, other = "layers.0.attn_norm.weight", "layers.0.ffn_norm.weight"
    header[one]["data_offsets"] = header[other]["data_offsets"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_typeless, "norm.weight has no type, shape or place"),
        (_placeless, "norm.weight has no place"),
        (_endless, "norm.weight has no type, shape or place"),
        (_thin, r"norm.weight is BF16 \[\d+\] and cannot take \d+ bytes"),
        (_shared, "its tensors overlap or leave gaps"),
    ],
)
def test_a_damaged_header_is_refused_with_what_is_wrong(
    small: Path, tmp_path: Path, change: Callable[[Header], None], sentence: str
) -> None:
    content = (small / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    change(header)
    _write(tmp_path, small, json.dumps(header).encode(), content[8 + length :])
    with pytest.raises(CheckpointError, match=f"damaged or truncated: {sentence}"):
        take(tmp_path, UNKNOWN)


@pytest.mark.parametrize("text", [b"[]", b"7", b'{"a":1}', b"\xff", b"[" * 9999, b'{"a":' * 9999])
def test_a_header_of_anything_else_is_refused(small: Path, tmp_path: Path, text: bytes) -> None:
    _write(tmp_path, small, text, b"")
    with pytest.raises(CheckpointError, match="damaged or truncated"):
        take(tmp_path, UNKNOWN)


def _write(folder: Path, like: Path, header: bytes, data: bytes) -> None:
    length = len(header).to_bytes(8, "little")
    (folder / "model.safetensors").write_bytes(length + header + data)
    shutil.copy(like / "config.json", folder)


def test_the_floor_is_bytes_over_bandwidth() -> None:
    account = take("k160", bandwidth(4690.0))
    assert account.bandwidth.floor_ms(account.read_bytes) == pytest.approx(2.385, abs=0.001)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is measured")
def test_without_a_gpu_the_floor_is_unknown_and_says_so() -> None:
    found = bandwidth(None)
    assert found.floor_ms(1e9) is None
    assert "no GPU" in found.source


def test_a_context_beyond_the_models_is_refused() -> None:
    with pytest.raises(ConfigError, match="between 1 and max_position_embeddings 2048"):
        take("tiny-v4", UNKNOWN, [4096])


def test_the_command_prints_json_whose_totals_are_the_sums(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--synthetic", "k160", "--json", "--bandwidth-gb-s", "4690"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["totals"]["read_bytes"] == sum(part["read_bytes"] for part in body["parts"])
    assert body["totals"]["floor_ms"] == pytest.approx(2.385, abs=0.001)
    assert [width["rows"] for width in body["widths"]] == list(range(1, 9))


def test_the_command_prints_where_each_number_is_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--synthetic", "tiny-v4", "--context", "512"]) == 0
    text = capsys.readouterr().out
    assert "from config, by these fields" in text
    assert "routed experts: 3 x hidden_size x moe_intermediate_size" in text


@pytest.mark.parametrize("columns", ["20", "80", "300"])
def test_no_digit_is_left_out_however_narrow_the_terminal(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["--synthetic", "k160", "--context", "1048576"]) == 0
    text = capsys.readouterr().out
    account = take("k160", UNKNOWN, [1_048_576])
    for part in account.parts:
        assert re.search(rf"{part.kind.name} .*\b{part.stored_bytes:,}\b", text)
    for held in account.memory:
        assert re.search(rf"1,048,576 +{held.format} .*\b{held.held / 1e6:.1f}\b", text)
    tables = [line for line in text.splitlines() if re.search(r"\d \s*\d", line)]
    assert max(map(len, tables)) < 80


@pytest.mark.parametrize(
    "arguments", [[], ["folder", "--synthetic", "k160"], ["/nowhere"], ["--synthetic", ""]]
)
def test_a_question_without_one_model_is_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e-320", "fast"])
def test_a_bandwidth_that_no_box_has_is_refused(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--synthetic", "k160", f"--bandwidth-gb-s={text}"])
    assert left.value.code == 2
    assert "must be from 0.001 to 1e+09" in capsys.readouterr().err
