"""A key/value row inside kernels: normalised, rotated, and rounded to what a cache keeps."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.launch import require
from kernels.norm import inverse_sizes
from kernels.packed import CACHE_GROUP
from kernels.rotary import turned
from kernels.rounding import e4m3_grouped

_GROUP = tl.constexpr(CACHE_GROUP)


def row_block(d: int, pairs: int, *, rounds: bool) -> int:
    """Channels of the tile of a row of `d`, of which 2 `pairs` are rotated and never rounded."""
    rounded = d - 2 * pairs
    require(
        not rounds or rounded % CACHE_GROUP == 0,
        f"{rounded} channels in groups of {CACHE_GROUP}",
    )
    return max(triton.next_power_of_2(d), CACHE_GROUP)


@triton.jit
def made(  # type: ignore[no-untyped-def]
    value, norm, c, s, d, pairs, eps,
    KIND: tl.constexpr, ROUNDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The row of `value` [1, BLOCK], float32 and zero past its `d` channels, cast to KIND.

    `norm` points at the weight of its normalisation; `c`, `s` are the `angles` of its position.
    """
    at = tl.arange(0, BLOCK)[None, :]
    value *= inverse_sizes(value, d, eps)
    value *= tl.load(norm + at, mask=at < d, other=0.0).to(tl.float32)
    value = turned(value.to(KIND).to(tl.float32), c, s, 1, BLOCK).to(KIND)
    if ROUNDS:
        wide = value.to(tl.float32)
        narrowed = e4m3_grouped(wide, 1, BLOCK, _GROUP)
        value = tl.where(at < d - 2 * pairs, narrowed, wide).to(KIND)
    return value
