"""Products of a tile of a plain weight's rows with a step's rows, inside kernels."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

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
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, TURNS: tl.constexpr,
    WHOLE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Float32 [COLUMNS, ROWS] over TURNS steps of the channels of `x` [m, k], `weight` [n, k].

    Part `split` of the sum. WHOLE: tiles and steps cover the weight exactly.
    """
    column = (tile * COLUMNS + tl.arange(0, COLUMNS))[:, None]
    row = tl.arange(0, ROWS)[:, None]
    lane = split * TURNS * STEP + tl.arange(0, STEP)[None, :]
    x_at = x + row * x_stride + lane
    w_at = weight + column.to(tl.int64) * k + lane
    acc = tl.zeros((COLUMNS, ROWS), tl.float32)
    for turn in range(TURNS):
        at = turn * STEP
        if WHOLE:
            w = tl.load(w_at + at)
            xs = tl.load(x_at + at, mask=row < m, other=0.0)
        else:
            w = tl.load(w_at + at, mask=(column < n) & (at + lane < k), other=0.0)
            xs = tl.load(x_at + at, mask=(row < m) & (at + lane < k), other=0.0)
        acc = tl.dot(w.to(DOT), tl.trans(xs.to(DOT)), acc, input_precision="ieee")
    return acc
