"""Rotary position embedding of heads, alone or right after the heads' normalisation."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import output, require, require_activation, require_contiguous
from kernels.norm import inverse_sizes


def rotate(
    x: Tensor, cos: Tensor, sin: Tensor, *, inverse: bool = False, out: Tensor | None = None
) -> Tensor:
    """Rotate the last 2 pairs channels of `x` [m, h, d], BF16 or float32, in interleaved pairs.

    `cos`, `sin` float32 [m, 1, pairs]; `inverse` turns back. Float32 inside, one cast. Raises
    ValueError for operands that do not fit.
    """
    return _launch(x, cos, sin, None, inverse, out)


def rotate_normalised(
    x: Tensor, cos: Tensor, sin: Tensor, eps: float, *, out: Tensor | None = None
) -> Tensor:
    """`rotate` of every head of `x` [m, h, d] scaled to unit mean square and cast to its dtype."""
    return _launch(x, cos, sin, eps, False, out)


def _launch(
    x: Tensor, cos: Tensor, sin: Tensor, eps: float | None, inverse: bool, out: Tensor | None
) -> Tensor:
    require(x.dim() == 3, f"x {tuple(x.shape)} is not [rows, heads, channels]")
    m, heads, d = x.shape
    pairs = cos.shape[-1]
    require_activation("x", x)
    require(
        cos.shape == sin.shape == (m, 1, pairs) and 2 * pairs <= d,
        f"a table {tuple(cos.shape)} does not fit {tuple(x.shape)}",
    )
    require(d % 2 == 0, f"{d} channels are no pairs")
    require(cos.dtype == sin.dtype == torch.float32, "the table is not float32")
    require_contiguous(x=x, cos=cos, sin=sin)
    y = output(out, (m, heads, d), x.dtype, x, cos, sin)
    if y.numel():
        _rotate[(m, heads)](
            x, cos, sin, y, heads, d, pairs, 0.0 if eps is None else eps,
            NORM=eps is not None, INVERSE=inverse, BLOCK=triton.next_power_of_2(d), num_warps=1,
        )  # fmt: skip
    return y


def require_table(cos: Tensor, sin: Tensor, channels: int) -> None:
    """A table float32 [positions, pairs] whose pairs fit `channels`, an even number."""
    require(
        cos.dim() == 2 and cos.shape == sin.shape and 2 * cos.shape[1] <= channels,
        f"a table {tuple(cos.shape)} does not fit {channels} channels",
    )
    require(channels % 2 == 0, f"{channels} channels are no pairs")
    require(cos.dtype == sin.dtype == torch.float32, "the table is not float32")
    require_contiguous(cos=cos, sin=sin)


@triton.jit
def angles(cos, sin, at, end, d, pairs, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """Cosines and sines [1, HALF] of the pairs of `d` channels, of row `at` of a table of `end`.

    No turn where there is no entry: ahead of the last `pairs`, and past the table.
    """
    pair = tl.arange(0, HALF)[None, :] - (d // 2 - pairs)
    there = (pair >= 0) & (pair < pairs) & (at < end)
    c = tl.load(cos + at * pairs + pair, mask=there, other=1.0)
    s = tl.load(sin + at * pairs + pair, mask=there, other=0.0)
    return c, s


@triton.jit
def turned(value, c, s, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """A tile [ROWS, BLOCK] of float32 with every pair of channels turned by the `angles` c, s."""
    even, odd = tl.split(tl.reshape(value, (ROWS, BLOCK // 2, 2)))
    return tl.reshape(tl.join(even * c - odd * s, odd * c + even * s), (ROWS, BLOCK))


@triton.jit
def _rotate(  # type: ignore[no-untyped-def]
    x, cos, sin, y, heads, d, pairs, eps,
    NORM: tl.constexpr, INVERSE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    start = (row * heads + tl.program_id(1)) * d
    at = tl.arange(0, BLOCK)[None, :]
    value = tl.load(x + start + at, mask=at < d, other=0.0).to(tl.float32)
    if NORM:
        value *= inverse_sizes(value, d, eps)
        value = value.to(y.dtype.element_ty).to(tl.float32)
    c, s = angles(cos, sin, row, row + 1, d, pairs, BLOCK // 2)
    if INVERSE:
        s = -s
    value = turned(value, c, s, 1, BLOCK)
    tl.store(y + start + at, value.to(y.dtype.element_ty), mask=at < d)
