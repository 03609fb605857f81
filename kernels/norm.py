"""Root-mean-square normalisation of rows, or of the heads of rows."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import output, require, require_activation, require_contiguous


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, *, out: Tensor | None = None) -> Tensor:
    """Scale the last axis of `x` [..., d] to unit mean square, times `weight` [d] when given.

    `x` is BF16 or float32: [m, d] whose rows may lie apart, or any contiguous shape (a head is a
    row). Float32 inside, one cast to `x.dtype`. Raises ValueError for operands that do not fit.
    """
    d = x.shape[-1]
    require_activation("x", x)
    require(weight is None or weight.shape == (d,), f"the weight does not fit {d} channels")
    require_contiguous(weight=weight)
    require(x.dim() == 2 or x.is_contiguous(), "x is neither two-dimensional nor contiguous")
    y = output(out, tuple(x.shape), x.dtype, x, weight)
    if y.numel() == 0:
        return y
    rows = x if x.dim() == 2 else x.view(-1, d)
    block = triton.next_power_of_2(d)
    _rms_norm[(rows.shape[0],)](
        rows, rows if weight is None else weight, y, rows.stride(0), d, eps,
        WEIGHT=weight is not None, BLOCK=block, num_warps=min(max(block // 512, 1), 8),
    )  # fmt: skip
    return y


@triton.jit
def inverse_size(x, d, eps):  # type: ignore[no-untyped-def]
    """1 over the root of the mean square of a float32 row `x`, zero past its `d` channels."""
    return 1.0 / tl.sqrt_rn(tl.sum(x * x, 0) / d + eps)


@triton.jit
def inverse_sizes(x, d, eps):  # type: ignore[no-untyped-def]
    """`inverse_size` of every row of a tile `x` [rows, channels], as a column."""
    return 1.0 / tl.sqrt_rn(tl.sum(x * x, 1) / d + eps)[:, None]


@triton.jit
def _rms_norm(  # type: ignore[no-untyped-def]
    x, weight, y, stride, d, eps, WEIGHT: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * stride + at, mask=at < d, other=0.0).to(tl.float32)
    value *= inverse_size(value, d, eps)
    if WEIGHT:
        value *= tl.load(weight + at, mask=at < d, other=0.0).to(tl.float32)
    tl.store(y + row * d + at, value.to(y.dtype.element_ty), mask=at < d)
