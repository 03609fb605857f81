"""Beginning before the launch before has ended: weights are fetched while it still computes.

A kernel launched with `launch_pdl=True` may start once every program of its predecessor has called
`let_next_begin` or ended. What it does before `wait` may depend on nothing that is computed: it may
load weights, and no more. The interpreter runs one launch after the other, and does nothing here.

Large products let the next begin only when theirs is done. Programs that start while others still
run are spread unevenly, and then the fullest processor decides how long a launch takes: that costs
more than the beginning saves. Weights fetched ahead of time take the bandwidth of the launch that
runs, so it pays only beside launches that read next to nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.launch import interpreted

_COMPILED = tl.constexpr(not interpreted())
# The vector unit asks for one register per address, and gets a zero.
_PREFETCH = tl.constexpr("{ cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0; }")


def possible(weight: Tensor) -> bool:
    """Whether the rows of `weight` [n, k] lie where a fetch may begin and end."""
    row = weight.shape[1] * weight.element_size()
    return weight.data_ptr() % 16 == 0 and row % 16 == 0


@triton.jit
def let_next_begin():  # type: ignore[no-untyped-def]
    """The launch after this one may start its programs wherever there is room."""
    if _COMPILED:
        gdc_launch_dependents()


@triton.jit
def wait():  # type: ignore[no-untyped-def]
    """Until the launch before has ended and all that it wrote can be read."""
    if _COMPILED:
        gdc_wait()


@triton.jit
def begin(EARLY: tl.constexpr):  # type: ignore[no-untyped-def]
    """The start of a kernel that has nothing to fetch: let the next begin, wait for the last."""
    let_next_begin()
    if EARLY:
        wait()


@triton.jit
def prefetch(pointers, size):  # type: ignore[no-untyped-def]
    """Ask for `size` bytes from each of `pointers`, both multiples of 16, in the second cache."""
    if _COMPILED:
        tl.inline_asm_elementwise(
            _PREFETCH, "=r,l,r", [pointers.to(tl.int64), size], tl.int32, is_pure=False, pack=1
        )


@triton.jit
def fetch(  # type: ignore[no-untyped-def]
    weight, tile, split, n, k, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr
):
    """Ask for a program's share of `weight` [n, k]: COLUMNS of its rows, CHANNELS of each."""
    column = tl.minimum(tile * COLUMNS + tl.arange(0, COLUMNS), n - 1)
    first = split * CHANNELS
    size = tl.minimum(k - first, CHANNELS)
    if size > 0:
        bytes_each: tl.constexpr = weight.dtype.element_ty.primitive_bitwidth // 8
        prefetch(weight + column.to(tl.int64) * k + first, size * bytes_each)
