"""Launches by configuration: what a field names is changed, the rest of a tile stays its own."""

from __future__ import annotations

from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton", reason="TRITON MISSING: NO TILE IS TESTED HERE")

import torch

from engine.config import OF_TRITON, TILES, EngineConfig
from engine.device.operations import Operations
from engine.device.tiles import Tiles, changed
from engine.errors import ConfigError
from engine.geometry import Geometry
from kernels import (
    attention,
    fp8_linear,
    heads,
    hyper,
    intake,
    lm_head,
    moe,
    project,
    router,
)

K160 = Geometry.named("k160")


def config(**changes: Any) -> EngineConfig:
    return EngineConfig.parse({"backend": "triton", "dtype": "bfloat16"} | changes)


def operations(**changes: Any) -> Operations:
    return Operations.kernels(torch.device("cpu"), Tiles(config(**changes), K160))


def test_a_named_field_changes_and_the_others_stay() -> None:
    found = operations(tile_gate_up="columns=64,stages=2", tile_project="early=0")
    assert found.moe.gate_up.keywords["tile"] == replace(moe.GATE_UP, columns=64, stages=2)
    assert "tile" not in getattr(found.moe.down, "keywords", {})
    assert found.project.project.keywords["tile"] == replace(project.TILE, early=False)
    assert found.project.project.keywords["tile"].early is False


def test_every_function_of_a_family_launches_alike() -> None:
    found = operations(tile_hyper="warps=2")
    tiles = {id(call): call.keywords["tile"] for call in
             (found.hyper.enter, found.hyper.advance, found.hyper.finish)}  # fmt: skip
    assert {tile.warps for tile in tiles.values()} == {2}


def test_attention_starts_from_the_tile_of_its_numbers() -> None:
    half = operations(tile_attend="splits=16").attention.attend.keywords["tile"]
    whole = operations(tile_attend="splits=16", dtype="float32").attention.attend.keywords["tile"]
    assert half == replace(attention.STEP, splits=16)
    assert whole == replace(attention.EXACT, splits=16)


@pytest.mark.parametrize(
    ("field", "shape"),
    [
        ("tile_queries", (32768, 1024)),
        ("tile_queries", (40960, 1024)),
        ("tile_wo_a", (8192, 4096)),
        ("tile_wo_b", (4096, 8192)),
    ],
)
def test_an_fp8_product_is_told_by_the_shape_of_its_weight(
    field: str, shape: tuple[int, int]
) -> None:
    seen = SimpleNamespace()

    def multiply(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, **named: Any) -> None:
        seen.tile = named.get("tile")

    groups = {"fp8_linear": SimpleNamespace(multiply=multiply)}
    Tiles(config(**{field: "warps=8"}), K160).apply(groups)
    weight, other = torch.empty(*shape, device="meta"), torch.empty(shape[0], 96, device="meta")
    step, chunk = torch.empty(8, 1, device="meta"), torch.empty(9, 1, device="meta")
    groups["fp8_linear"].multiply(step, weight, weight)
    assert seen.tile == replace(fp8_linear.decode_tile(*shape), warps=8)
    for x, matrix in ((chunk, weight), (step, other)):
        groups["fp8_linear"].multiply(x, matrix, matrix)
        assert seen.tile is None


@pytest.mark.parametrize("name", [name for name in TILES if name != "tile_head"])
def test_a_field_that_a_tile_does_not_have_is_refused_with_those_it_has(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} has no 'colour'; known: .*warps"):
        operations(**{name: "colour=1"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("columns=0", "tile_wo_b takes columns of at least 1"),
        ("stages=2,columns=32,stages=3", "tile_wo_b names stages twice"),
        ("early=7", "tile_wo_b takes early=0 or early=1, not early=7"),
    ],
)
def test_what_a_field_of_a_tile_may_not_be_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        operations(tile_wo_b=text)


@pytest.mark.parametrize("text", ["columns", "columns=", "columns=-1", "columns=a", "a=1,", 3])
def test_what_is_no_tile_is_refused_when_it_is_read(text: object) -> None:
    with pytest.raises(ConfigError, match="tile_down must be empty or fields of a tile"):
        config(tile_down=text)


def test_tiles_are_of_the_triton_backend_alone_and_leave_the_other_as_it_was() -> None:
    torch_fields = EngineConfig().canonical()
    assert not set(OF_TRITON) & set(torch_fields)
    with pytest.raises(ConfigError, match="tile_down is a choice of the triton backend"):
        EngineConfig(tile_down="warps=4").effective(K160, 1)


def test_every_declared_lever_of_a_tile_names_fields_that_it_has() -> None:
    import experiments

    declared = [x for x in experiments.discover() if (x.field_name or "").startswith("tile_")]
    assert len(declared) >= 6
    for lever in declared:
        operations(**lever.change)


def test_no_lever_and_no_knob_of_a_tile_asks_for_what_is_in_use() -> None:
    import experiments
    from experiments.knobs import KNOBS

    in_use = {
        "tile_attend": attention.STEP, "tile_down": moe.DOWN, "tile_gate_up": moe.GATE_UP,
        "tile_head": lm_head.TILE, "tile_heads": heads.TILE, "tile_hyper": hyper.TILE,
        "tile_intake": intake.TILE, "tile_project": project.TILE, "tile_router": router.TILE,
        "tile_queries": fp8_linear.decode_tile(32768, 1024),
        "tile_wo_a": fp8_linear.decode_tile(8192, 4096),
        "tile_wo_b": fp8_linear.decode_tile(4096, 8192),
    }  # fmt: skip
    asked = [(k.field, str(k.set_to(value, ""))) for k in KNOBS for value in k.values]
    asked += [item for lever in experiments.discover() for item in lever.change.items()]
    tiles = [(name, text) for name, text in asked if name.startswith("tile_")]
    assert len(tiles) > 30
    for name, text in tiles:
        assert changed(in_use[name], name, text) != in_use[name], f"{name} {text}"


def test_what_a_kernel_refuses_of_a_tile_is_said_in_a_sentence_that_names_it() -> None:
    asked = Tiles(config(tile_down="columns=17"), K160)
    sentence = r"tile_down 'columns=17'\): not a power of two\."
    with pytest.raises(ConfigError, match=sentence), asked.answered():
        raise ValueError("not a power of two\nand more")
    with pytest.raises(ConfigError, match="tile_down 'columns=17'"), asked.answered():
        torch.empty(2) @ torch.empty(3)  # what a driver refuses is a RuntimeError as well
    with pytest.raises(ValueError, match="a defect"), Tiles(config(), K160).answered():
        raise ValueError("a defect")


def test_no_tile_of_the_configuration_is_forgotten() -> None:
    named = {field.name for field in fields(EngineConfig) if field.name.startswith("tile_")}
    assert named == set(TILES)
