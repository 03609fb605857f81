"""Products of a tile of a plain weight's rows with a step's rows, inside kernels."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ahead import wait
from kernels.launch import interpreted, require, require_activation, require_contiguous


def require_weight(name: str, weight: Tensor, channels: int) -> None:
    """BF16 or float32 [n, channels], one run of memory."""
    require(weight.dim() == 2, f"{name} has {weight.dim()} axes, not 2")
    require_activation(name, weight, channels)
    require_contiguous(**{name: weight})


def dot_type(x: Tensor, weight: Tensor) -> Any:
    """Operand type of the products: BF16 if both are, and the tensor cores are real."""
    narrow = x.dtype == weight.dtype == torch.bfloat16
    return tl.bfloat16 if narrow and not interpreted() else tl.float32


@triton.jit
def products(  # type: ignore[no-untyped-def]
    x, weight, tile, split, m, x_stride, n, k,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr, STEP: tl.constexpr,
    TURNS: tl.constexpr, WHOLE: tl.constexpr, DOT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Float32 [COLUMNS, ROWS] of the channels of `x` [m, k] and `weight` [n, k].

    Part `split` of the sum: TURNS turns of PARTS times STEP channels; of several parts, each warp
    has one. WHOLE: tiles and turns cover the weight exactly. EARLY: all of the program's weights
    are loaded, then what `x` comes from is waited for.
    """
    x_at, w_at, row, column, lane = places(
        x, weight, tile, split * TURNS * PARTS * STEP, x_stride, k, ROWS, COLUMNS, PARTS, STEP
    )
    acc = zeros(ROWS, COLUMNS, PARTS)
    if EARLY:
        held = tl.tuple(())
        for turn in tl.static_range(TURNS):
            at = turn * PARTS * STEP
            held += (_operand(w_at + at, column < n, at + lane < k, WHOLE, WHOLE),)
        wait()
        for turn in tl.static_range(TURNS):
            at = turn * PARTS * STEP
            xs = _operand(x_at + at, row < m, at + lane < k, False, WHOLE)
            acc = add(acc, held[turn], xs, PARTS, DOT)
    else:
        for turn in range(TURNS):
            at = turn * PARTS * STEP
            w = _operand(w_at + at, column < n, at + lane < k, WHOLE, WHOLE)
            xs = _operand(x_at + at, row < m, at + lane < k, False, WHOLE)
            acc = add(acc, w, xs, PARTS, DOT)
    return whole(acc, PARTS)


@triton.jit
def _operand(at, line, lane, LINES: tl.constexpr, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    """What lies at `at`; zero where there is no line or no lane, unless there are all."""
    if LINES and LANES:
        found = tl.load(at)
    elif LANES:
        found = tl.load(at, mask=line, other=0.0)
    else:
        found = tl.load(at, mask=line & lane, other=0.0)
    return found


@triton.jit
def places(  # type: ignore[no-untyped-def]
    x, weight, tile, first, x_stride, k,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Where a turn from channel `first` on finds its operands; its rows, columns and channels."""
    if PARTS == 1:
        column = (tile * COLUMNS + tl.arange(0, COLUMNS))[:, None]
        row = tl.arange(0, ROWS)[:, None]
        lane = first + tl.arange(0, STEP)[None, :]
    else:
        column = (tile * COLUMNS + tl.arange(0, COLUMNS))[None, :, None]
        row = tl.arange(0, ROWS)[None, :, None]
        part = tl.arange(0, PARTS)[:, None, None]
        lane = first + part * STEP + tl.arange(0, STEP)[None, None, :]
    return x + row * x_stride + lane, weight + column.to(tl.int64) * k + lane, row, column, lane


@triton.jit
def zeros(ROWS: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sums of no products."""
    if PARTS == 1:
        acc = tl.zeros((COLUMNS, ROWS), tl.float32)
    else:
        acc = tl.zeros((PARTS, COLUMNS, ROWS), tl.float32)
    return acc


@triton.jit
def add(acc, w, xs, PARTS: tl.constexpr, DOT: tl.constexpr):  # type: ignore[no-untyped-def]
    """`acc` and a turn's products."""
    right = tl.trans(xs.to(DOT)) if PARTS == 1 else tl.permute(xs.to(DOT), (0, 2, 1))
    return tl.dot(w.to(DOT), right, acc, input_precision="ieee")


@triton.jit
def whole(acc, PARTS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Float32 [COLUMNS, ROWS] of the sums of all parts."""
    if PARTS > 1:
        acc = tl.sum(acc, 0)
    return acc
