"""The calls that keep a layer's rings and rows, timed at the real shapes; their bytes are few."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kernels import context, heads, intake
from kernels.bench import shape
from kernels.bench.tunable import Calls, Make, Tunable
from kernels.pool import Pool

_SPARSE, _DENSE = 4, 128  # positions of a window
_INDEX = 128  # channels of a head of the index
_STEP = 8  # rows that a ring takes at once
_CONTEXT = 8192
_STAGES = 3

_TIMES = 32  # calls of a graph


@dataclass(frozen=True, slots=True)
class Layer:
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


def every(rows: int) -> Iterator[Tunable]:
    """Of the kinds of layers."""
    intakes = [
        intake.Tile(*tile)
        for tile in itertools.product((256, 512, 1024, 2048), (2, 4, 8), (False, True))
    ]
    prepares = [
        heads.Tile(*tile)
        for tile in itertools.product(
            (1, 2, 4, 8), (4, 8, 16, 32), (8, 16, 32), (2, 4, 8), (False, True)
        )
    ]
    for name, make in LAYERS.items():

        def take(most: int, make: Callable[[int], Layer] = make) -> Make:
            layer = make(rows)
            return lambda tile: [partial(layer.intake, tile)] * min(most, _TIMES)

        def prepare(most: int, make: Callable[[int], Layer] = make) -> Make:
            layer = make(rows)
            return lambda tile: [partial(layer.heads, tile)] * min(most, _TIMES)

        yield Tunable(f"intake {name}", 0.0, [intake.TILE], intakes, take)
        yield Tunable(f"heads {name}", 0.0, [heads.TILE], prepares, prepare)


def context_calls(rows: int) -> Calls:
    """The draft head's rows of `rows` new positions."""
    call = partial(
        context.extend, _bf16(rows, _STAGES * shape.HEAD), _bf16(_STAGES, shape.HEAD), *_table(),
        torch.tensor([1000], device="cuda"), torch.tensor([rows], device="cuda"),
        _bf16(_STAGES, shape.WINDOW, shape.HEAD), eps=1e-6, rounds=True,
    )  # fmt: skip
    return [call] * _TIMES


def _sparse(rows: int) -> Layer:
    pools = (_pool(_SPARSE, shape.HEAD, 2), _pool(_SPARSE, _INDEX, 2))
    return _layer(rows, 1000, pools, _INDEX)


def _dense(rows: int, position: int) -> Layer:
    return _layer(rows, position, (_pool(_DENSE, shape.HEAD, 1),), 0)


# The kinds of layers, for a number of rows.
LAYERS: dict[str, Callable[[int], Layer]] = {
    "window": lambda rows: _layer(rows, 1000, (), 0),
    "sparse": _sparse,
    "dense": lambda rows: _dense(rows, 1024),
    "dense, a window ends": lambda rows: _dense(rows, 1023),
}


def _layer(rows: int, position: int, pools: tuple[Pool, ...], index_dim: int) -> Layer:
    columns = sum(2 * pool.width for pool in pools) + (shape.HEADS if index_dim else 0)
    return Layer(
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


def _table() -> tuple[Tensor, Tensor]:
    angles = torch.rand(_CONTEXT, shape.ROTARY // 2, device="cuda")
    return angles.cos(), angles.sin()


def _bf16(*size: int) -> Tensor:
    return torch.randn(size, device="cuda", dtype=torch.bfloat16)
