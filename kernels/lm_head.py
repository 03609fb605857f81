"""Scores of the next token for a step's rows, and the best of them, in one launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import best, dense
from kernels.best import Best
from kernels.launch import DECODE_ROWS, output, require, require_activation
from kernels.workspace import Workspace, room


class Head(NamedTuple):
    """What the output head says of every row."""

    scores: Tensor  # float32 [m, v]
    best: Best


@dataclass(frozen=True, slots=True)
class Tile:
    """The launch; all are powers of two but `stages`, `columns` 16 or more."""

    columns: int = 64
    step: int = 128
    warps: int = 4
    stages: int = 4


TILE = Tile()


def scores(
    x: Tensor,
    head: Tensor,
    *,
    out: Head | None = None,
    tile: Tile = TILE,
    workspace: Workspace | None = None,
) -> Head:
    """`x` [m, d], up to 8 rows, times `head` [v, d], both BF16 or float32; v > 1.

    Accumulated and left in float32. Raises ValueError for operands that do not fit or an `out`
    that shares memory with one.
    """
    (m, d), v = x.shape, head.shape[0]
    require(m <= DECODE_ROWS, f"{m} rows are no step")
    require(v > 1, f"{v} tokens have no second best")
    require_activation("x", x, d)
    dense.require_weight("head", head, d)
    found = _outputs(out, x, head)
    if m:
        tiles = triton.cdiv(v, tile.columns)
        meet = best.Meeting.of(tiles, DECODE_ROWS)
        met = room(workspace, x.device, 2 * meet.words, meet.arrivals)
        turns = triton.cdiv(d, tile.step)
        _scores[(tiles,)](
            x, head, found.scores, found.best.token, found.best.margin,
            found.best.finite.view(torch.uint8), met.words, met.arrivals, m, x.stride(0), v, d,
            ROWS=DECODE_ROWS, COLUMNS=tile.columns, STEP=tile.step, TURNS=turns,
            WHOLE=v % tile.columns == 0 and turns * tile.step == d, DOT=dense.dot_type(x, head),
            GROUPS=meet.groups, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return found


def _outputs(out: Head | None, x: Tensor, head: Tensor) -> Head:
    m, v = x.shape[0], head.shape[0]
    given = (None,) * 4 if out is None else (out.scores, *out.best)
    table = output(given[0], (m, v), torch.float32, x, head)
    token = output(given[1], (m,), torch.int64, x, head, table)
    margin = output(given[2], (m,), torch.float32, x, head, table, token)
    finite = output(given[3], (m,), torch.bool, x, head, table, token, margin)
    return Head(table, Best(token, margin, finite))


@triton.jit(do_not_specialize=["m"])
def _scores(  # type: ignore[no-untyped-def]
    x, head, scores, token, margin, finite, words, arrivals, m, x_stride, v, d,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, TURNS: tl.constexpr,
    WHOLE: tl.constexpr, DOT: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    tile, tiles = tl.program_id(0), tl.num_programs(0)
    found = dense.products(
        x, head, tile, 0, m, x_stride, v, d, ROWS, COLUMNS, STEP, TURNS, WHOLE, DOT
    )
    row = tl.arange(0, ROWS)
    column = (tile * COLUMNS + tl.arange(0, COLUMNS))[:, None]
    at = scores + row[None, :].to(tl.int64) * v + column
    tl.store(at, found, mask=(column < v) & (row < m)[None, :])
    last, first, second, good = best.conclude(
        words, arrivals, tile, tiles, found, column, column < v, GROUPS
    )
    if last:
        tl.store(token + row, best.token_of(first), mask=row < m)
        gap = best.score_of(first) - best.score_of(second)
        tl.store(margin + row, gap, mask=row < m)
        tl.store(finite + row, good.to(tl.uint8), mask=row < m)
