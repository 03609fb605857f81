"""A row's logits are the same bits alone and in any company, in every configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import Configure
from torch import Tensor

from engine import model
from engine.engine import Engine
from engine.errors import ConfigError
from engine.independence import rows_are_independent
from engine.torch_backend import prefill

VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"moe": "fused"},
    {"moe": "dense"},
    {"attention": "joined"},
    {"hyper": "matrix"},
    {"row_tile": 4, "draft_width": 3},
    {"cache_format": "packed"},
    {"numerics": "exact"},
    {"numerics": "reference"},
    {"moe": "dense", "attention": "joined", "hyper": "matrix", "row_tile": 4, "draft_width": 3},
    {"moe": "fused", "attention": "joined", "cache_format": "packed", "numerics": "reference"},
)
# Rounds activations in groups of 128, which the quick checkpoint's widths do not fill.
REFERENCE = [v for v in VARIANTS if v.get("numerics") == "reference"]
FEWER = [v for v in VARIANTS if len(v) != 1 or v in REFERENCE]
# From an empty state, over the first window of 128, and over a bucket of compressed rows.
STRETCHES = ((0, 40), (116, 140), (500, 520))
TEXT = [(i * i * 3 + i * 41 + 17) % 249 for i in range(540)]


def named(fields: dict[str, Any]) -> str:
    return "-".join(str(v) for v in fields.values()) or "default"


@torch.inference_mode()
def one_by_one(engine: Engine, start: int, stop: int) -> tuple[list[Tensor], list[Any]]:
    """Logits of the rows at `start` .. `stop` - 1, each in a step of its own, and states before."""
    state = engine.new_state()
    if start:
        prefill(engine.backbone, None, state, TEXT[:start])
    logits, states = [], []
    for position in range(start, stop):
        states.append(state.snapshot())
        forward = engine.backbone.forward(torch.tensor(TEXT[position : position + 1]), state)
        logits.append(engine.backbone.logits(forward)[0])
        state.commit(1)
    return logits, states


@torch.inference_mode()
def company_changes(engine: Engine, start: int, stop: int) -> list[tuple[int, int, int]]:
    """(first position, width, row) whose logits differ from the row's own step."""
    logits, states = one_by_one(engine, start, stop)
    found = []
    for first in range(start, stop):
        state = states[first - start]
        tile = max(engine.config.row_tile, engine.config.draft_width + 1)
        room = min(tile, stop - first, state.span())
        for width in {1 + first % tile, 1 + (first * 5 + 3) % tile, tile}:
            if width > room:
                continue
            same = width if width == tile else first % width + 1  # rows that follow the text
            ids = TEXT[first : first + same] + [(first * 31 + j) % 249 for j in range(width - same)]
            got = engine.backbone.logits(engine.backbone.forward(torch.tensor(ids), state))
            assert got.shape[0] == width
            state.rollback()
            found += [
                (first, width, row)
                for row in range(same)
                if not torch.equal(got[row], logits[first - start + row])
            ]
    return found


@pytest.mark.parametrize("fields", [v for v in VARIANTS if v not in REFERENCE], ids=named)
def test_a_row_has_the_same_bits_in_any_company(
    quick_engine: Engine, configure: Configure, fields: dict[str, Any]
) -> None:
    quick_engine.reconfigure(configure(verify_rows="together", **fields))
    if quick_engine.config.verify_rows == "apart":
        pytest.skip(
            "THIS MACHINE'S PRODUCTS ARE NOT ROW-INDEPENDENT; the engine verifies row by row"
        )
    for start, stop in STRETCHES:
        assert company_changes(quick_engine, start, stop) == []


@pytest.mark.parametrize("fields", FEWER, ids=named)
def test_so_it_has_in_a_model_with_every_layer_type(
    small_engine: Engine, configure: Configure, fields: dict[str, Any]
) -> None:
    small_engine.reconfigure(configure(verify_rows="together", **fields))
    if small_engine.config.verify_rows == "apart":
        pytest.skip(
            "THIS MACHINE'S PRODUCTS ARE NOT ROW-INDEPENDENT; the engine verifies row by row"
        )
    for start, stop in ((0, 9), (121, 134)):
        assert company_changes(small_engine, start, stop) == []


def test_every_row_tile_that_is_accepted_keeps_rows_independent(
    quick_engine: Engine, configure: Configure
) -> None:
    """Vector loops finish with scalar code of other bits, so not every height of a tile will do."""
    found, tried = {}, []
    for tile in range(1, 9):
        fields = configure(verify_rows="together", row_tile=tile, draft_width=min(tile - 1, 5))
        try:
            quick_engine.reconfigure(fields)
        except ConfigError:
            continue
        if quick_engine.config.verify_rows == "together":
            tried.append(tile)
            found[tile] = company_changes(quick_engine, 0, 30)
    assert 8 in tried
    assert {tile: rows for tile, rows in found.items() if rows} == {}


def test_packed_rows_give_the_bits_of_unpacked_ones(
    small_engine: Engine, configure: Configure
) -> None:
    told = []
    for form in ("float32", "packed"):
        small_engine.reconfigure(configure(cache_format=form))
        told.append(
            [row for start in (0, 124) for row in one_by_one(small_engine, start, start + 12)[0]]
        )
    assert all(torch.equal(plain, packed) for plain, packed in zip(*told, strict=True))


def test_packed_state_is_smaller(small_engine: Engine, configure: Configure) -> None:
    sizes = []
    for form in ("float32", "packed"):
        small_engine.reconfigure(configure(cache_format=form, context=2048))
        sizes.append(small_engine.new_state().size_bytes())
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"moe": "fused"},
        {"moe": "dense"},
        {"attention": "joined"},
        {"hyper": "matrix"},
        {"row_tile": 4, "draft_width": 3},
        {"row_tile": 5, "draft_width": 4, "prefill_chunk": 7},
        {"row_tile": 3, "draft_width": 2, "prefill_chunk": 8},
        {"prefill_chunk": 5},
    ],
    ids=named,
)
def test_ways_of_computing_agree(
    small_engine: Engine, configure: Configure, fields: dict[str, Any]
) -> None:
    told = []
    for chosen in ({}, fields):
        small_engine.reconfigure(configure(numerics="exact", **chosen))
        logits, _ = one_by_one(small_engine, 131, 134)
        told.append(torch.stack(logits))
    assert (told[1] - told[0]).norm() < 1e-5 * told[0].norm()


def test_reference_numerics_differ_from_the_others_but_not_by_much(
    small_engine: Engine, configure: Configure
) -> None:
    told = {}
    for numerics in ("exact", "cache", "reference"):
        small_engine.reconfigure(configure(numerics=numerics))
        told[numerics] = torch.stack(one_by_one(small_engine, 40, 44)[0])
    for a, b in (("exact", "cache"), ("cache", "reference")):
        distance = (told[a] - told[b]).norm() / told[a].norm()
        assert 1e-4 < distance < 0.5, (a, b)


# ------------------------------------------------------------------ machines that are not


def test_a_dependent_machine_is_noticed_and_verifies_row_by_row(
    quick: Path, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = model.linear

    def batched(x: Tensor, weight: Tensor) -> Tensor:
        """A product that adds a trace of the other rows to every row."""
        return honest(x, weight) * (1 + 1e-6 * x.mean())

    engine = Engine.load(quick, configure(moe="dense", prefill_chunk=16))
    plain = [t for c in engine.generate(TEXT[:9], max_new_tokens=12) for t in c.tokens]
    assert rows_are_independent(engine.backbone)
    monkeypatch.setattr(model, "linear", batched)
    assert not rows_are_independent(engine.backbone)
    wary = Engine.load(quick, configure(moe="dense", prefill_chunk=16))
    assert wary.config.verify_rows == "apart"
    told = list(wary.generate(TEXT[:9], max_new_tokens=12))
    assert [t for c in told for t in c.tokens] == plain
    assert any(c.round.accepted for c in told if c.round)


def test_rows_verified_apart_give_the_tokens_of_rows_together(
    quick_engine: Engine, configure: Configure
) -> None:
    told = []
    for rows in ("together", "apart"):
        quick_engine.reconfigure(configure(moe="dense", verify_rows=rows))
        told.append(list(quick_engine.generate(TEXT[:20], max_new_tokens=60)))
    together, apart = told
    assert [c.tokens for c in together] == [c.tokens for c in apart]
    rounds = [[(c.round.offered, c.round.accepted) for c in t if c.round] for t in told]
    assert rounds[0] == rounds[1]
