"""Round trips of cache rows through the narrow formats: E4M3 in groups, E2M1 after Hadamard.

The rounding is arithmetic on float32, so it needs no device that knows the formats. Scales are the
smallest power of two that brings a group's largest value into range.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels import narrow
from kernels.launch import dot_type, output, require, require_activation, require_contiguous

_ROWS = 16  # rows of a program; the tensor core's tile in `hadamard_fp4`


def fp8_round(x: Tensor, group: int, *, out: Tensor | None = None) -> Tensor:
    """E4M3 round trip of contiguous `x` [..., d], BF16 or float32, in groups of `group` channels.

    d is a multiple of `group`, a power of two. Raises ValueError for operands that do not fit.
    """
    return _launch_fp8(x, x.shape[-1], group, out)


def cache_round(
    row: Tensor, rotary_dim: int, group: int = 64, *, out: Tensor | None = None
) -> Tensor:
    """`fp8_round` of all but the last `rotary_dim` channels of key/value rows `row` [..., d]."""
    return _launch_fp8(row, row.shape[-1] - rotary_dim, group, out)


def fp4_round(x: Tensor, group: int = 32, *, out: Tensor | None = None) -> Tensor:
    """E2M1 round trip of contiguous `x` [..., d], BF16 or float32, in groups of `group` channels.

    d is a power of two of at least 16. Raises ValueError for operands that do not fit.
    """
    return _launch_fp4(x, group, False, out)


def hadamard_fp4(x: Tensor, group: int = 32, *, out: Tensor | None = None) -> Tensor:
    """`fp4_round` of the normalised Hadamard transform of `x` [..., d], float32 in between."""
    return _launch_fp4(x, group, True, out)


def _launch_fp8(x: Tensor, rounded: int, group: int, out: Tensor | None) -> Tensor:
    d = x.shape[-1]
    _check(x, group)
    require(rounded >= 0 and rounded % group == 0, f"{rounded} channels in groups of {group}")
    y = output(out, tuple(x.shape), x.dtype, x)
    if y.numel():
        groups = triton.next_power_of_2(triton.cdiv(d, group))
        _fp8[(x.numel() // d,)](x, y, d, rounded, GROUPS=groups, GROUP=group, num_warps=1)
    return y


def _launch_fp4(x: Tensor, group: int, hadamard: bool, out: Tensor | None) -> Tensor:
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
            D=d, GROUP=group, ROWS=_ROWS, HADAMARD=hadamard, DOT=dot_type(x), num_warps=4,
        )  # fmt: skip
    return y


def _check(x: Tensor, group: int) -> None:
    require_activation("x", x)
    require(group > 0 and group & (group - 1) == 0, f"a group of {group} is no power of two")
    require_contiguous(x=x)


@triton.jit
def _fp8(  # type: ignore[no-untyped-def]
    x, y, d, rounded, GROUPS: tl.constexpr, GROUP: tl.constexpr
):
    start = tl.program_id(0).to(tl.int64) * d
    at = tl.arange(0, GROUPS)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    value = tl.load(x + start + at, mask=at < d, other=0.0).to(tl.float32)
    largest = tl.maximum(tl.max(tl.abs(value), 1), 1e-4)
    scale = narrow.power_over(tl.div_rn(largest, 448.0))[:, None]
    narrowed = narrow.round_e4m3(value * narrow.inverse_power(scale)) * scale
    value = tl.where(at < rounded, narrowed, value)
    tl.store(y + start + at, value.to(y.dtype.element_ty), mask=at < d)


@triton.jit(do_not_specialize=["rows"])
def _fp4(  # type: ignore[no-untyped-def]
    x, y, rows, size, D: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
    HADAMARD: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, D)
    at = row[:, None] * D + lane[None, :]
    there = (row < rows)[:, None] & (lane < D)[None, :]
    given = tl.load(x + at, mask=there, other=0.0)
    if HADAMARD:
        # Sylvester's matrix: minus where the two indices share an odd number of bits.
        both = lane[:, None] & lane[None, :]
        both ^= both >> 8
        both ^= both >> 4
        both ^= both >> 2
        both ^= both >> 1
        sign = tl.where((both & 1) == 1, -1.0, 1.0).to(DOT)
        value = tl.dot(given.to(DOT), sign, input_precision="ieee") * size
    else:
        value = given.to(tl.float32)
    grouped = tl.reshape(value, (ROWS, D // GROUP, GROUP))
    # The floor of the format: 6 * 2 ** -126, so that the scale is a normal number.
    largest = tl.maximum(tl.max(tl.abs(grouped), 2), 7.052966104933725e-38)
    scale = narrow.power_over(tl.div_rn(largest, 6.0))[:, :, None]
    narrowed = narrow.round_e2m1(grouped * narrow.inverse_power(scale)) * scale
    tl.store(y + at, tl.reshape(narrowed, (ROWS, D)).to(y.dtype.element_ty), mask=there)
