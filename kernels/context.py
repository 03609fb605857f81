"""Context rows of the draft head: keys and values of committed positions, for every stage."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import (
    require,
    require_activation,
    require_apart,
    require_contiguous,
    require_scalar,
)
from kernels.rotary import angles, require_table
from kernels.row import made, row_block

_WARPS = 4


def extend(
    y: Tensor,
    norms: Tensor,
    cos: Tensor,
    sin: Tensor,
    start: Tensor,
    count: Tensor,
    rings: Tensor,
    *,
    eps: float,
    rounds: bool,
) -> None:
    """Store the first `count` [1] (int64) rows of `y` in `rings`, at positions from `start` [1].

    `y` [m, stages d], BF16 or float32, as projected, stage by stage; `norms` [stages, d]; `cos`,
    `sin` float32 [context, pairs] by position; `rings` [stages, slots, d], position p at slot
    p % slots. Of more rows than slots the last are kept. Rows are made as in `intake.store`. Raises
    ValueError for operands that do not fit.
    """
    require(rings.dim() == 3, f"rings {tuple(rings.shape)} are not [stages, slots, channels]")
    stages, slots, d = rings.shape
    require(norms.shape == (stages, d), f"norms {tuple(norms.shape)} are not {(stages, d)}")
    require(y.dim() == 2, f"y {tuple(y.shape)} is not two-dimensional")
    require_activation("y", y, stages * d)
    require_activation("rings", rings)
    require_table(cos, sin, d)
    require_scalar("start", start)
    require_scalar("count", count)
    require_contiguous(y=y, norms=norms, rings=rings)
    require_apart([rings], [y, norms, cos, sin, start, count])
    pairs = cos.shape[1]
    if y.shape[0]:
        _extend[(y.shape[0], stages)](
            y, norms, cos, sin, start, count, rings, y.shape[0], d, pairs, cos.shape[0],
            stages, slots, eps,
            BLOCK=row_block(d, pairs, rounds=rounds), ROUNDS=rounds, num_warps=_WARPS,
        )  # fmt: skip


@triton.jit(do_not_specialize=["m"])
def _extend(  # type: ignore[no-untyped-def]
    y, norms, cos, sin, start, count, rings, m, d, pairs, context, stages, slots, eps,
    BLOCK: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    row, stage = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    kept = tl.minimum(tl.load(count), m)
    if (row < kept) & (row >= kept - slots):
        at = tl.load(start) + row
        channel = tl.arange(0, BLOCK)[None, :]
        x = y + (row * stages + stage) * d + channel
        value = tl.load(x, mask=channel < d, other=0.0).to(tl.float32)
        c, s = angles(cos, sin, at, context, d, pairs, BLOCK // 2)
        value = made(value, norms + stage * d, c, s, d, pairs, eps,
                     y.dtype.element_ty, ROUNDS, BLOCK)  # fmt: skip
        place = rings + (stage * slots + at % slots) * d + channel
        tl.store(place, value.to(rings.dtype.element_ty), mask=channel < d)
