"""A layer's first products in one launch: an FP8 weight beside one of more precision, for a step.

Programs of the heavier second weight come first, so that the lighter ones fill the end. Either is
the left operand of the tensor cores, as in `kernels.fp8_linear`, and ends within the launch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import ahead, dense, fp8_linear, meeting
from kernels.launch import DECODE_ROWS, dot_type, output, require
from kernels.workspace import Workspace, room


@dataclass(frozen=True, slots=True)
class Tile:
    """The launch; every number but the splits is a power of two, `columns` 16 or more."""

    columns: int = 32
    splits8: int = 8  # programs that share the channels of a tile of FP8 columns
    splits16: int = 8  # and of the others
    step16: int = 64  # channels of the others at once
    warps: int = 2
    stages: int = 4
    early: bool = True  # begin before the launch before has ended


TILE = Tile()


def project(
    x: Tensor,
    weight8: Tensor,
    scale8: Tensor,
    weight16: Tensor | None,
    *,
    out: tuple[Tensor, Tensor] | None = None,
    tile: Tile = TILE,
    workspace: Workspace | None = None,
) -> tuple[Tensor, Tensor]:
    """`x` [m, k], up to 8 rows, times both weights: [m, n8] of `x`'s dtype, float32 [m, n16].

    `x` is BF16 or float32, `weight8` E4M3 [n8, k] with `scale8` E8M0 [ceil(n8 / 128),
    ceil(k / 128)], `weight16` BF16 or float32 [n16, k]; without it the second product has no
    columns. Both are accumulated in float32. Raises ValueError for operands that do not fit or an
    `out` that shares memory with one.
    """
    other = x.new_empty((0, weight8.shape[1])) if weight16 is None else weight16
    _check(x, weight8, scale8, other)
    m, n8, n16 = x.shape[0], weight8.shape[0], other.shape[0]
    operands = (x, weight8, scale8, other)
    y8, y16 = (None, None) if out is None else out
    y8 = output(y8, (m, n8), x.dtype, *operands)
    y16 = output(y16, (m, n16), torch.float32, *operands, y8)
    if m:
        _launch(x, weight8, scale8, other, y8, y16, tile, workspace)
    return y8, y16


def _check(x: Tensor, weight8: Tensor, scale8: Tensor, weight16: Tensor) -> None:
    fp8_linear.check(x, weight8, scale8, 1)
    require(x.shape[0] <= DECODE_ROWS, f"{x.shape[0]} rows are no step")
    dense.require_weight("weight16", weight16, x.shape[1])


def _launch(
    x: Tensor,
    weight8: Tensor,
    scale8: Tensor,
    weight16: Tensor,
    y8: Tensor,
    y16: Tensor,
    tile: Tile,
    workspace: Workspace | None,
) -> None:
    (m, n8), n16, k = y8.shape, y16.shape[1], x.shape[1]
    first = fp8_linear.Tile(DECODE_ROWS, tile.columns, tile.splits8, tile.warps, tile.stages)
    tiles8, tiles16 = triton.cdiv(n8, tile.columns), triton.cdiv(n16, tile.columns)
    sums = tile.columns * DECODE_ROWS
    parts16 = tiles16 * tile.splits16 * sums
    parts8 = tiles8 * tile.splits8 * sums
    met = room(workspace, x.device, parts16 + parts8, tiles16 + tiles8)
    turns = triton.cdiv(triton.cdiv(k, tile.step16), tile.splits16)
    _project[(tiles16 * tile.splits16 + tiles8 * tile.splits8,)](
        x, weight8.view(torch.uint8), scale8.view(torch.uint8), weight16, y8, y16,
        met.parts, met.arrivals, m, x.stride(0), n8, n16, k, tiles16, parts16,
        **fp8_linear.shape_of(first, n8, k), DOT=dot_type(x),
        SPLITS16=tile.splits16, STEP16=tile.step16, TURNS16=turns,
        WHOLE16=n16 % tile.columns == 0 and turns * tile.splits16 * tile.step16 == k,
        DOT16=dense.dot_type(x, weight16), EARLY=tile.early,
        num_warps=tile.warps, num_stages=tile.stages, launch_pdl=tile.early,
    )  # fmt: skip


@triton.jit(do_not_specialize=["m"])
def _project(  # type: ignore[no-untyped-def]
    x, weight8, scale8, weight16, y8, y16, parts, arrivals,
    m, x_stride, n8, n16, k, tiles16, parts16,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPLITS: tl.constexpr, PARTS: tl.constexpr,
    CHUNK: tl.constexpr, WHOLE: tl.constexpr, DOT: tl.constexpr,
    SPLITS16: tl.constexpr, STEP16: tl.constexpr, TURNS16: tl.constexpr, WHOLE16: tl.constexpr,
    DOT16: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    if EARLY:
        ahead.wait()
    if program < tiles16 * SPLITS16:
        tile, split = program // SPLITS16, program % SPLITS16
        total = dense.products(
            x, weight16, tile, split, m, x_stride, n16, k,
            ROWS, COLUMNS, 1, STEP16, TURNS16, WHOLE16, DOT16, False,
        )  # fmt: skip
        ahead.let_next_begin()
        meeting.finish(total, y16, parts, arrivals, tile, split, m, n16, SPLITS16)
    else:
        program -= tiles16 * SPLITS16
        tile, split = program // SPLITS, program % SPLITS
        fp8_linear.finish_tile(
            x, weight8, scale8, y8, parts + parts16, arrivals + tiles16, tile, split,
            m, x_stride, n8, k, n8, ROWS, COLUMNS, SPLITS, PARTS, CHUNK, WHOLE, DOT,
        )  # fmt: skip
