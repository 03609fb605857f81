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
    """The launch; all are powers of two but `tiles` and `stages`, `columns` 16 or more.

    Programs end a wave together and do not read while they do: few should have few ends. A
    vocabulary of 2 ** 8 * 505 fills 505 programs of 256 columns, four on nearly every processor.
    """

    columns: int = 64
    tiles: int = 4  # of a program, one after the other
    step: int = 128  # channels of a part at once
    warps: int = 4
    stages: int = 3
    parts: int = 1  # 1: warps share the columns; else as many as warps: they share the channels


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
        require(tile.parts in (1, tile.warps), f"{tile.parts} parts for {tile.warps} warps")
        width, share = tile.columns * tile.tiles, tile.parts * tile.step
        programs, turns = triton.cdiv(v, width), triton.cdiv(d, share)
        meet = best.Meeting.of(programs, DECODE_ROWS)
        met = room(workspace, x.device, 2 * meet.words, meet.arrivals)
        _scores[(programs,)](
            x, head, found.scores, found.best.token, found.best.margin,
            found.best.finite.view(torch.uint8), met.words, met.arrivals, m, x.stride(0), v, d,
            ROWS=DECODE_ROWS, COLUMNS=tile.columns, TILES=tile.tiles, PARTS=tile.parts,
            STEP=tile.step, TURNS=turns, WHOLE=v % width == 0 and turns * share == d,
            DOT=dense.dot_type(x, head), GROUPS=meet.groups,
            num_warps=tile.warps, num_stages=tile.stages,
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
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr, PARTS: tl.constexpr,
    STEP: tl.constexpr, TURNS: tl.constexpr, WHOLE: tl.constexpr, DOT: tl.constexpr,
    GROUPS: tl.constexpr,
):  # fmt: skip
    """One loop over all turns of all tiles: reading goes on from one tile to the next."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    x_at, w_at, row, column, lane = dense.places(
        x, head, program * TILES, 0, x_stride, d, ROWS, COLUMNS, PARTS, STEP
    )
    rows, columns = tl.arange(0, ROWS)[None, :], tl.arange(0, COLUMNS)[:, None]
    first = tl.full((COLUMNS, ROWS), best.LOWEST, tl.int64)
    second = first
    good = tl.full((COLUMNS, ROWS), 1, tl.int64)
    acc = dense.zeros(ROWS, COLUMNS, PARTS)
    for step in range(TILES * TURNS):
        tile, turn = step // TURNS, step % TURNS
        at = turn * PARTS * STEP
        w_from = w_at + (tile * COLUMNS * d + at)
        if WHOLE:
            w = tl.load(w_from)
            xs = tl.load(x_at + at, mask=row < m, other=0.0)
        else:
            inside = at + lane < d
            w = tl.load(w_from, mask=(tile * COLUMNS + column < v) & inside, other=0.0)
            xs = tl.load(x_at + at, mask=(row < m) & inside, other=0.0)
        acc = dense.add(tl.where(turn == 0, 0.0, acc), w, xs, PARTS, DOT)
        if turn == TURNS - 1:
            found = dense.whole(acc, PARTS)
            index = (program * TILES + tile) * COLUMNS + columns
            there = index < v
            place = scores + rows.to(tl.int64) * v + index
            tl.store(place, found, mask=there & (rows < m))
            keys = tl.where(there, best.key(found, index), best.LOWEST)
            second = tl.maximum(second, tl.minimum(first, keys))
            first = tl.maximum(first, keys)
            good = tl.minimum(good, best.sound(found, there))
    first, second = best.join(first, second)
    last, first, second, good = best.conclude(
        words, arrivals, program, programs, first, second, tl.min(good, 0), GROUPS
    )
    if last:
        each = tl.arange(0, ROWS)
        tl.store(token + each, best.token_of(first), mask=each < m)
        gap = best.score_of(first) - best.score_of(second)
        tl.store(margin + each, gap, mask=each < m)
        tl.store(finite + each, good.to(tl.uint8), mask=each < m)
