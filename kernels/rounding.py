"""Round trips of cache rows through the narrow formats: E4M3 in groups, E2M1 after Hadamard.

The rounding is arithmetic on float32, so it needs no device that knows the formats. Scales are the
smallest power of two that brings a group's largest value into range.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels import narrow
from kernels.launch import output, require, require_activation, require_contiguous
from kernels.packed import CACHE_GROUP, INDEX_GROUP

_ROWS = 8  # of a program of `_fp4`


def fp8_round(x: Tensor, group: int, *, out: Tensor | None = None) -> Tensor:
    """E4M3 round trip of contiguous `x` [..., d], BF16 or float32, in groups of `group` channels.

    d is a multiple of `group`, a power of two. Raises ValueError for operands that do not fit.
    """
    return _launch_fp8(x, x.shape[-1], group, out)


def cache_round(
    row: Tensor, rotary_dim: int, group: int = CACHE_GROUP, *, out: Tensor | None = None
) -> Tensor:
    """`fp8_round` of all but the last `rotary_dim` channels of key/value rows `row` [..., d]."""
    return _launch_fp8(row, row.shape[-1] - rotary_dim, group, out)


def fp4_round(x: Tensor, group: int = INDEX_GROUP, *, out: Tensor | None = None) -> Tensor:
    """E2M1 round trip of contiguous `x` [..., d], BF16 or float32, in groups of `group` channels.

    d is a power of two of at least 16. Raises ValueError for operands that do not fit.
    """
    return _launch_fp4(x, group, False, out)


def hadamard_fp4(x: Tensor, group: int = INDEX_GROUP, *, out: Tensor | None = None) -> Tensor:
    """`fp4_round` of the normalised Hadamard transform of `x` [..., d], float32 in between."""
    return _launch_fp4(x, group, True, out)


def require_index(channels: int) -> None:
    """Refuse index operands whose channels cannot be transformed and rounded in groups."""
    require(
        channels >= INDEX_GROUP and channels & (channels - 1) == 0,
        f"index operands of {channels} channels: no power of two from {INDEX_GROUP}",
    )


def _launch_fp8(x: Tensor, rounded: int, group: int, out: Tensor | None) -> Tensor:
    d = x.shape[-1]
    _check(x, group)
    require(rounded >= 0 and rounded % group == 0, f"{rounded} channels in groups of {group}")
    y = output(out, tuple(x.shape), x.dtype, x)
    if y.numel():
        block = max(triton.next_power_of_2(d), group)
        _fp8[(x.numel() // d,)](x, y, d, rounded, BLOCK=block, GROUP=group, num_warps=1)
    return y


def _launch_fp4(x: Tensor, group: int, transform: bool, out: Tensor | None) -> Tensor:
    d = x.shape[-1]
    _check(x, group)
    require(
        d >= 16 and d & (d - 1) == 0 and d % group == 0,
        f"{d} channels are no power of two from 16 in groups of {group}",
    )
    y = output(out, tuple(x.shape), x.dtype, x)
    if y.numel():
        rows = x.numel() // d
        _fp4[(triton.cdiv(rows, _ROWS),)](
            x, y, rows, d**-0.5,
            D=d, GROUP=group, ROWS=_ROWS, HADAMARD=transform, num_warps=4,
        )  # fmt: skip
    return y


def _check(x: Tensor, group: int) -> None:
    require_activation("x", x)
    require(group > 0 and group & (group - 1) == 0, f"a group of {group} is no power of two")
    require_contiguous(x=x)


@triton.jit
def e4m3_grouped(  # type: ignore[no-untyped-def]
    value, ROWS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr
):
    """Round trip of a tile [ROWS, BLOCK] of float32 in groups of GROUP channels."""
    grouped = tl.reshape(value, (ROWS, BLOCK // GROUP, GROUP))
    largest = tl.maximum(tl.max(tl.abs(grouped), 2), 1e-4)
    scale = narrow.power_over(tl.div_rn(largest, 448.0))[:, :, None]
    narrowed = narrow.round_e4m3(grouped * narrow.inverse_power(scale)) * scale
    return tl.reshape(narrowed, (ROWS, BLOCK))


@triton.jit
def e2m1_grouped(  # type: ignore[no-untyped-def]
    value, ROWS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr
):
    """Round trip of a tile [ROWS, BLOCK] of float32 in groups of GROUP channels."""
    grouped = tl.reshape(value, (ROWS, BLOCK // GROUP, GROUP))
    # The floor of the format: 6 * 2 ** -126, so that the scale is a normal number.
    largest = tl.maximum(tl.max(tl.abs(grouped), 2), 7.052966104933725e-38)
    scale = narrow.power_over(tl.div_rn(largest, 6.0))[:, :, None]
    narrowed = narrow.round_e2m1(grouped * narrow.inverse_power(scale)) * scale
    return tl.reshape(narrowed, (ROWS, BLOCK))


@triton.jit
def hadamard(value, size, ROWS: tl.constexpr, D: tl.constexpr):  # type: ignore[no-untyped-def]
    """The transform of a tile [ROWS, D] of float32, D a power of two, times `size`.

    By butterflies: each pairs channels by the last bit of their index, and makes that bit the
    first. A product with Sylvester's matrix would take twice as long to make the matrix.
    """
    for bit in tl.static_range(16):
        if 2**bit < D:
            even, odd = tl.split(tl.reshape(value, (ROWS, D // 2, 2)))
            both = tl.permute(tl.join(even + odd, even - odd), (0, 2, 1))
            value = tl.reshape(both, (ROWS, D))
    return value * size


@triton.jit
def _fp8(  # type: ignore[no-untyped-def]
    x, y, d, rounded, BLOCK: tl.constexpr, GROUP: tl.constexpr
):
    start = tl.program_id(0).to(tl.int64) * d
    at = tl.arange(0, BLOCK)[None, :]
    value = tl.load(x + start + at, mask=at < d, other=0.0).to(tl.float32)
    value = tl.where(at < rounded, e4m3_grouped(value, 1, BLOCK, GROUP), value)
    tl.store(y + start + at, value.to(y.dtype.element_ty), mask=at < d)


@triton.jit(do_not_specialize=["rows"])
def _fp4(  # type: ignore[no-untyped-def]
    x, y, rows, size, D: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
    HADAMARD: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = row[:, None] * D + tl.arange(0, D)[None, :]
    there = (row < rows)[:, None]
    value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    if HADAMARD:
        value = hadamard(value, size, ROWS, D)
    value = e2m1_grouped(value, ROWS, D, GROUP)
    tl.store(y + at, value.to(y.dtype.element_ty), mask=there)
