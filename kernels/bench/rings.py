"""The calls that keep a layer's rings and rows, timed at the real shapes; their bytes are few."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernels import context, heads, intake
from kernels.bench import shape
from kernels.pool import Pool

_SPARSE, _DENSE = 4, 128  # positions of a window
_INDEX = 128  # channels of a head of the index
_STEP = 8  # rows that a ring takes at once
_CONTEXT = 8192
_STAGES = 3

Calls = list[Callable[[], object]]


@dataclass(frozen=True, slots=True)
class _Layer:
    """Operands of one kind of layer for a step of some rows at `position`."""

    y8: Tensor
    y16: Tensor
    y: Tensor
    norms: tuple[Tensor, Tensor]
    table: tuple[Tensor, Tensor]
    position: Tensor
    window: Tensor
    pools: tuple[Pool, ...]
    index_dim: int

    def intake(self, tile: intake.Tile = intake.TILE) -> Tensor:
        return intake.store(
            self.y8, self.y16, *self.norms, *self.table, self.position, self.window, self.pools,
            eps=1e-6, rounds=True, tile=tile,
        )  # fmt: skip

    def heads(self, tile: heads.Tile = heads.TILE) -> heads.Queries:
        return heads.prepare(
            self.y, *self.table, self.position, self.pools, heads=shape.HEADS,
            head_dim=shape.HEAD, index_dim=self.index_dim, eps=1e-6, rounds=True, tile=tile,
        )  # fmt: skip


def every(rows: int) -> Iterator[tuple[str, Calls]]:
    """Names and calls, of the kinds of layers and of the draft head."""
    for name, layer in _layers(rows):
        yield f"intake {name}", [layer.intake] * 32
        yield f"heads {name}", [layer.heads] * 32
    yield "draft context", [_context(rows)] * 32


def tunable(rows: int) -> Iterator[tuple[str, Callable[[Any], Calls], list[Any]]]:
    """Name, calls for a tile, and the tiles to try."""
    intakes = [
        intake.Tile(*sizes) for sizes in itertools.product((256, 512, 1024, 2048), (2, 4, 8))
    ]
    prepares = [
        heads.Tile(*sizes)
        for sizes in itertools.product((1, 2, 4, 8), (4, 8, 16, 32), (8, 16, 32), (2, 4, 8))
    ]
    for name, layer in _layers(rows):

        def take(tile: intake.Tile, layer: _Layer = layer) -> Calls:
            return [partial(layer.intake, tile)] * 32

        def prepare(tile: heads.Tile, layer: _Layer = layer) -> Calls:
            return [partial(layer.heads, tile)] * 32

        yield f"intake {name}", take, intakes
        yield f"heads {name}", prepare, prepares


def _layers(rows: int) -> Iterator[tuple[str, _Layer]]:
    sparse = (_pool(_SPARSE, shape.HEAD, 2), _pool(_SPARSE, _INDEX, 2))
    dense = (_pool(_DENSE, shape.HEAD, 1),)
    yield "window", _layer(rows, 1000, (), 0)
    yield "sparse", _layer(rows, 1000, sparse, _INDEX)
    yield "dense", _layer(rows, 1024, dense, 0)
    yield "dense, a window ends", _layer(rows, 1023, dense, 0)


def _layer(rows: int, position: int, pools: tuple[Pool, ...], index_dim: int) -> _Layer:
    columns = sum(2 * pool.width for pool in pools) + (shape.HEADS if index_dim else 0)
    return _Layer(
        y8=_bf16(rows, shape.LATENT + shape.HEAD),
        y16=torch.randn(rows, columns, device="cuda"),
        y=_bf16(rows, shape.HEADS * (shape.HEAD + index_dim)),
        norms=(_bf16(shape.LATENT), _bf16(shape.HEAD)),
        table=_table(),
        position=torch.tensor([position], device="cuda"),
        window=_bf16(shape.WINDOW + _STEP, shape.HEAD),
        pools=pools,
        index_dim=index_dim,
    )


def _pool(ratio: int, d: int, halves: int) -> Pool:
    """One whose windows pool `halves` of the channels of as many windows."""
    width = halves * d
    return Pool(
        ape=torch.randn(ratio, width, device="cuda"),
        norm=_bf16(d),
        inputs=torch.randn(ratio * halves + _STEP, 2 * width, device="cuda"),
        rows=_bf16(_CONTEXT // ratio, d),
    )


def _context(rows: int) -> Callable[[], object]:
    return partial(
        context.extend, _bf16(rows, _STAGES * shape.HEAD), _bf16(_STAGES, shape.HEAD), *_table(),
        torch.tensor([1000], device="cuda"), torch.tensor([rows], device="cuda"),
        _bf16(_STAGES, shape.WINDOW, shape.HEAD), eps=1e-6, rounds=True,
    )  # fmt: skip


def _table() -> tuple[Tensor, Tensor]:
    angles = torch.rand(_CONTEXT, shape.ROTARY // 2, device="cuda")
    return angles.cos(), angles.sin()


def _bf16(*size: int) -> Tensor:
    return torch.randn(size, device="cuda", dtype=torch.bfloat16)
