"""Rotary position embedding of heads, alone or right after the heads' normalisation."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import output, require, require_activation, require_contiguous
from kernels.norm import inverse_size


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
    require(cos.dtype == sin.dtype == torch.float32, "the table is not float32")
    require_contiguous(x=x, cos=cos, sin=sin)
    y = output(out, (m, heads, d), x.dtype, x, cos, sin)
    if y.numel():
        _rotate[(m, heads)](
            x, cos, sin, y, heads, d, pairs, 0.0 if eps is None else eps,
            NORM=eps is not None, INVERSE=inverse, BLOCK=triton.next_power_of_2(d), num_warps=1,
        )  # fmt: skip
    return y


@triton.jit
def _rotate(  # type: ignore[no-untyped-def]
    x, cos, sin, y, heads, d, pairs, eps,
    NORM: tl.constexpr, INVERSE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    start = (row * heads + tl.program_id(1)) * d
    at = tl.arange(0, BLOCK)
    tail = at - (d - 2 * pairs)
    turned = (tail >= 0) & (at < d)
    # A channel and its partner: one apart, within the tail.
    partner = tl.where(turned, d - 2 * pairs + (tail ^ 1), at)
    own = tl.load(x + start + at, mask=at < d, other=0.0).to(tl.float32)
    other = tl.load(x + start + partner, mask=at < d, other=0.0).to(tl.float32)
    if NORM:
        kind = y.dtype.element_ty
        size = inverse_size(own, d, eps)
        own = (own * size).to(kind).to(tl.float32)
        other = (other * size).to(kind).to(tl.float32)
    angle = row * pairs + tail // 2
    c = tl.load(cos + angle, mask=turned, other=1.0)
    s = tl.load(sin + angle, mask=turned, other=0.0)
    if INVERSE:
        s = -s
    value = own * c + other * tl.where((tail & 1) == 1, s, -s)
    tl.store(y + start + at, value.to(y.dtype.element_ty), mask=at < d)
