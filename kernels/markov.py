"""One drafted token in one launch: the head's scores, moved by what the token before it says.

The token stays on the device, where the next step reads it: a graph may hold a whole block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import ahead, best, dense
from kernels.launch import DECODE_ROWS, output, require, require_activation, require_contiguous
from kernels.workspace import Workspace, room


class Draft(NamedTuple):
    """A drafted slot."""

    scores: Tensor  # float32 [v]
    token: Tensor  # int64 [1]: the best, of equals the lowest
    margin: Tensor  # float32 [1]: the best score less the second
    confidence: Tensor  # float32 [1], between 0 and 1


@dataclass(frozen=True, slots=True)
class Tile:
    """The launch; `tokens`, a power of two of 16 or more, are read at once."""

    tokens: int = 32
    turns: int = 8  # of a program, one after the other
    warps: int = 4
    stages: int = 4
    fetch: int = 2  # turns whose weights are asked for before the token is known
    early: bool = False  # and before the launch before has ended


TILE = Tile()


def step(
    base: Tensor,
    previous: Tensor,
    hidden: Tensor,
    w1: Tensor,
    w2: Tensor,
    confidence: Tensor,
    *,
    out: Draft | None = None,
    tile: Tile = TILE,
    workspace: Workspace | None = None,
) -> Draft:
    """`base` float32 [v] plus `w2` [v, rank] times the `previous` token's row of `w1` [v, rank].

    `previous` int64 [1]; `hidden` [d] is the slot's vector before the final norm. The slot's
    confidence is the sigmoid of `confidence` [1, d + rank] times `hidden` and the row of `w1`.
    `hidden` and the weights are BF16 or float32, all products float32. Raises ValueError for
    operands that do not fit or an `out` that shares memory with one.
    """
    _check(base, previous, hidden, w1, w2, confidence)
    (v, rank), d = w2.shape, hidden.shape[0]
    operands = (base, previous, hidden, w1, w2, confidence)
    given: tuple[Tensor | None, ...] = (None,) * 4 if out is None else out
    moved = output(given[0], (v,), torch.float32, *operands)
    token = output(given[1], (1,), torch.int64, *operands, moved)
    margin = output(given[2], (1,), torch.float32, *operands, moved, token)
    sure = output(given[3], (1,), torch.float32, *operands, moved, token, margin)
    programs = triton.cdiv(v, tile.tokens * tile.turns)
    meet = best.Meeting.of(programs, DECODE_ROWS)
    met = room(workspace, base.device, 2 * meet.words, meet.arrivals)
    fetch = min(tile.fetch, tile.turns) if ahead.possible(w2) else 0
    _step[(programs + 1,)](
        base, previous, hidden, w1, w2, confidence, moved, token, margin, sure,
        met.words, met.arrivals, v, d, rank,
        TOKENS=tile.tokens, TURNS=tile.turns, STAGES=tile.stages,
        ROWS=DECODE_ROWS, RANK=max(triton.next_power_of_2(rank), 16),
        WIDTH=triton.next_power_of_2(d), DOT=dense.dot_type(w1, w2),
        GROUPS=meet.groups, FETCH=fetch, EARLY=tile.early,
        num_warps=tile.warps, launch_pdl=tile.early,
    )  # fmt: skip
    return Draft(moved, token, margin, sure)


def _check(
    base: Tensor, previous: Tensor, hidden: Tensor, w1: Tensor, w2: Tensor, confidence: Tensor
) -> None:
    v, rank = w2.shape
    require(v > 1, f"{v} tokens have no second best")
    require(
        base.shape == (v,) and base.dtype == torch.float32,
        f"base scores are {base.dtype} {tuple(base.shape)}, not float32 of {v} tokens",
    )
    require(
        previous.shape == (1,) and previous.dtype == torch.int64,
        f"the token before is {previous.dtype} {tuple(previous.shape)}, not one int64",
    )
    require(hidden.dim() == 1, f"hidden has {hidden.dim()} axes, not one slot's")
    require_activation("hidden", hidden)
    dense.require_weight("w2", w2, rank)
    dense.require_weight("w1", w1, rank)
    require(w1.shape == w2.shape, f"w1 {tuple(w1.shape)} is not w2 {tuple(w2.shape)}")
    dense.require_weight("confidence", confidence, hidden.shape[0] + rank)
    require_contiguous(base=base)


@triton.jit
def _step(  # type: ignore[no-untyped-def]
    base, previous, hidden, w1, w2, confidence, moved, token, margin, sure, words, arrivals,
    v, d, rank,
    TOKENS: tl.constexpr, TURNS: tl.constexpr, STAGES: tl.constexpr, ROWS: tl.constexpr,
    RANK: tl.constexpr, WIDTH: tl.constexpr, DOT: tl.constexpr, GROUPS: tl.constexpr,
    FETCH: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    program, programs = tl.program_id(0), tl.num_programs(0) - 1
    ahead.let_next_begin()
    if program < programs:
        for turn in tl.static_range(FETCH):
            ahead.fetch(w2, program * TURNS + turn, 0, v, rank, TOKENS, RANK)
    if EARLY:
        ahead.wait()
    row = w1 + tl.load(previous) * rank
    if program == programs:
        _trust(hidden, confidence, row, d, rank, sure, RANK, WIDTH)
    else:
        _move(
            base, w2, row, moved, token, margin, words, arrivals, program, programs, v, rank,
            TOKENS, TURNS, STAGES, ROWS, RANK, DOT, GROUPS,
        )  # fmt: skip


@triton.jit
def _trust(  # type: ignore[no-untyped-def]
    hidden, confidence, row, d, rank, sure, RANK: tl.constexpr, WIDTH: tl.constexpr
):
    """The slot's confidence, from its vector and the `row` of the token before it."""
    channel, lane = tl.arange(0, WIDTH), tl.arange(0, RANK)
    x = tl.load(hidden + channel, mask=channel < d, other=0.0).to(tl.float32)
    head = tl.load(confidence + channel, mask=channel < d, other=0.0).to(tl.float32)
    y = tl.load(row + lane, mask=lane < rank, other=0.0).to(tl.float32)
    tail = tl.load(confidence + d + lane, mask=lane < rank, other=0.0).to(tl.float32)
    tl.store(sure, tl.sigmoid(tl.sum(x * head, 0) + tl.sum(y * tail, 0)))


@triton.jit
def _move(  # type: ignore[no-untyped-def]
    base, w2, row, moved, token, margin, words, arrivals, program, programs, v, rank,
    TOKENS: tl.constexpr, TURNS: tl.constexpr, STAGES: tl.constexpr, ROWS: tl.constexpr,
    RANK: tl.constexpr, DOT: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """A program's tiles of scores; whoever ends the last one names the best token.

    The `row` is the first of ROWS, as tensor cores want several; the others are zeros, and nothing
    is made of their scores.
    """
    rows, lane = tl.arange(0, ROWS), tl.arange(0, RANK)[None, :]
    inside = lane < rank
    right = tl.load(row + lane + 0 * rows[:, None], mask=(rows == 0)[:, None] & inside, other=0.0)
    right = tl.trans(right.to(DOT))
    first = tl.full((TOKENS, ROWS), best.LOWEST, tl.int64)
    second = first
    for turn in tl.range(0, TURNS, num_stages=STAGES):
        index = ((program * TURNS + turn) * TOKENS + tl.arange(0, TOKENS))[:, None]
        there = index < v
        w = tl.load(w2 + index.to(tl.int64) * rank + lane, mask=there & inside, other=0.0)
        found = tl.load(base + index, mask=there, other=0.0)
        found += tl.dot(w.to(DOT), right, input_precision="ieee")
        tl.store(moved + index + 0 * rows[None, :], found, mask=there & (rows == 0)[None, :])
        keys = tl.where(there, best.key(found, index), best.LOWEST)
        second = tl.maximum(second, tl.minimum(first, keys))
        first = tl.maximum(first, keys)
    first, second = best.join(first, second)
    last, first, second, _ = best.conclude(
        words, arrivals, program, programs, first, second, first, GROUPS
    )
    if last:
        tl.store(token + rows, best.token_of(first), mask=rows == 0)
        tl.store(margin + rows, best.score_of(first) - best.score_of(second), mask=rows == 0)
