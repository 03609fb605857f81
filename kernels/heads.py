"""Queries of a step's heads, and the rows of the windows that the step completes, in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from kernels import ahead
from kernels.compressor import POSITIONS, complete, ports, shapes
from kernels.launch import (
    require,
    require_activation,
    require_apart,
    require_contiguous,
    require_scalar,
)
from kernels.norm import inverse_sizes
from kernels.packed import INDEX_GROUP, tensors
from kernels.pool import Pool
from kernels.rotary import angles, require_table, turned
from kernels.rounding import e2m1_grouped, hadamard, require_index

_GROUP = tl.constexpr(INDEX_GROUP)


class Queries(NamedTuple):
    """What a step's rows ask: of the window and compressed rows, and of the index."""

    main: Tensor  # [m, heads, head_dim]
    indexer: Tensor | None  # [m, index_heads, index_dim]


@dataclass(frozen=True, slots=True)
class Tile:
    """Launch of the kernel; all but the warps are powers of two."""

    heads: int  # of a program
    index_heads: int  # of a program
    positions: int  # whose inputs are read at once when a window is pooled
    warps: int
    early: bool = False  # begin before the launch before has ended


TILE = Tile(heads=4, index_heads=16, positions=POSITIONS, warps=4)


def prepare(
    y: Tensor,
    cos: Tensor,
    sin: Tensor,
    position: Tensor,
    pools: Sequence[Pool] = (),
    *,
    heads: int,
    head_dim: int,
    index_dim: int = 0,
    eps: float,
    rounds: bool,
    tile: Tile = TILE,
) -> Queries:
    """Queries of `y`, and a row for every window that ends within the step, in `pools`' `rows`.

    `y` [m, heads head_dim + index_heads index_dim], BF16 or float32, as projected. `cos`, `sin`
    float32 [context, pairs] by position. Row r is at `position` [1] (int64) + r, and the inputs of
    `pools` hold all of the step's rows already: a long passage passes no pools, see
    `kernels.passage`.

    Heads are scaled to unit mean square, cast, rotated. Heads of the index (`index_dim` > 0) are
    rotated and, where `rounds`, go through `hadamard_fp4`. The first of `pools` makes key/value
    rows, the second index keys; float32 until stored. Raises ValueError for operands that do not
    fit.
    """
    m, index_heads = _check(y, heads, head_dim, index_dim, rounds)
    pairs = cos.shape[-1]
    require_table(cos, sin, min(head_dim, index_dim or head_dim))
    require_scalar("position", position)
    given = ports(pools, m)
    fixed = [part for pool in pools for part in (pool.ape, pool.norm, pool.inputs)]
    made = [part for pool in pools for part in tensors(pool.rows)]
    require_apart(made, [y, cos, sin, position, *fixed])
    main = y.new_empty((m, heads, head_dim))
    indexer = y.new_empty((m, index_heads, index_dim))
    programs = sum(triton.cdiv(m, pool.ratio) for pool in pools)
    programs += m * triton.cdiv(heads, tile.heads) + m * triton.cdiv(index_heads, tile.index_heads)
    if m:
        _prepare[(programs,)](
            y, main, indexer, cos, sin, position, given, m, heads, head_dim, index_heads,
            index_dim, pairs, cos.shape[0], index_dim**-0.5 if index_dim else 0.0, eps,
            SHAPES=shapes(pools, pairs, tile.positions, rounds=rounds),
            HEADS=tile.heads, INDEX_HEADS=tile.index_heads,
            BLOCK=triton.next_power_of_2(head_dim),
            INDEX=triton.next_power_of_2(index_dim) if index_dim else 0,
            ROUNDS=rounds, EARLY=tile.early,
            num_warps=tile.warps, launch_pdl=tile.early,
        )  # fmt: skip
    return Queries(main, indexer if index_dim else None)


def _check(y: Tensor, heads: int, head_dim: int, index_dim: int, rounds: bool) -> tuple[int, int]:
    """Rows, and heads of the index."""
    require(y.dim() == 2, f"y {tuple(y.shape)} is not two-dimensional")
    require_activation("y", y)
    require_contiguous(y=y)
    left = y.shape[1] - heads * head_dim
    index_heads = left // index_dim if index_dim else 0
    require(
        left == index_heads * index_dim,
        f"{y.shape[1]} channels are not {heads} heads of {head_dim} and some of {index_dim}",
    )
    if rounds and index_dim:
        require_index(index_dim)
    return y.shape[0], index_heads


@triton.jit(do_not_specialize=["m"])
def _prepare(  # type: ignore[no-untyped-def]
    y, main, indexer, cos, sin, position, pools, m, heads, d, index_heads, index_d,
    pairs, context, size, eps,
    SHAPES: tl.constexpr, HEADS: tl.constexpr, INDEX_HEADS: tl.constexpr,
    BLOCK: tl.constexpr, INDEX: tl.constexpr, ROUNDS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Windows first: one of them takes longest."""
    ahead.begin(EARLY)
    part = tl.program_id(0)
    start = tl.load(position)
    for i in tl.static_range(len(pools)):
        w = start // SHAPES[i][0] + part
        if (part >= 0) & ((w + 1) * SHAPES[i][0] <= start + m):
            complete(pools[i], w, cos, sin, context, pairs, eps, y, 0, start,
                     tl.constexpr(SHAPES[i]), i == 1, ROUNDS, False)  # fmt: skip
        part -= tl.cdiv(m, SHAPES[i][0])
    columns = heads * d + index_heads * index_d
    groups = tl.cdiv(heads, HEADS)
    if (part >= 0) & (part < m * groups):
        row = (part // groups).to(tl.int64)
        c, s = angles(cos, sin, start + row, context, d, pairs, BLOCK // 2)
        head = part % groups * HEADS
        _head(y + row * columns, main + row * heads * d, c, s, head, heads, d, eps, HEADS, BLOCK)
    if INDEX > 0:
        part -= m * groups
        groups = tl.cdiv(index_heads, INDEX_HEADS)
        if (part >= 0) & (part < m * groups):
            row = (part // groups).to(tl.int64)
            head = part % groups * INDEX_HEADS
            x = y + row * columns + heads * d
            out = indexer + row * index_heads * index_d
            c, s = angles(cos, sin, start + row, context, index_d, pairs, INDEX // 2)
            _index(x, out, c, s, head, index_heads, index_d, size, INDEX_HEADS, INDEX, ROUNDS)


@triton.jit
def _head(  # type: ignore[no-untyped-def]
    x, out, c, s, head, heads, d, eps, HEADS: tl.constexpr, BLOCK: tl.constexpr
):
    """Store HEADS heads of one row, from `head` on: normalised and turned."""
    head += tl.arange(0, HEADS)[:, None]
    channel = tl.arange(0, BLOCK)[None, :]
    there = (head < heads) & (channel < d)
    value = tl.load(x + head * d + channel, mask=there, other=0.0).to(tl.float32)
    value *= inverse_sizes(value, d, eps)
    value = turned(value.to(out.dtype.element_ty).to(tl.float32), c, s, HEADS, BLOCK)
    tl.store(out + head * d + channel, value.to(out.dtype.element_ty), mask=there)


@triton.jit
def _index(  # type: ignore[no-untyped-def]
    x, out, c, s, head, heads, d, size,
    HEADS: tl.constexpr, BLOCK: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    """Store HEADS heads of the index of one row, from `head` on: turned, transformed, rounded."""
    head += tl.arange(0, HEADS)[:, None]
    channel = tl.arange(0, BLOCK)[None, :]
    there = (head < heads) & (channel < d)
    value = tl.load(x + head * d + channel, mask=there, other=0.0).to(tl.float32)
    value = turned(value, c, s, HEADS, BLOCK).to(out.dtype.element_ty)
    if ROUNDS:
        wide = hadamard(value.to(tl.float32), size, HEADS, BLOCK)
        value = e2m1_grouped(wide, HEADS, BLOCK, _GROUP).to(out.dtype.element_ty)
    tl.store(out + head * d + channel, value, mask=there)
