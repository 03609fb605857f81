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
from kernels.launch import output, require, require_activation, require_contiguous
from kernels.workspace import Workspace, room


class Draft(NamedTuple):
    """A drafted slot."""

    scores: Tensor  # float32 [v]
    token: Tensor  # int64 [1]: the best, of equals the lowest
    margin: Tensor  # float32 [1]: the best score less the second
    confidence: Tensor  # float32 [1], between 0 and 1


@dataclass(frozen=True, slots=True)
class Tile:
    """The launch; `tokens`, a power of two, are a program's."""

    tokens: int = 128
    warps: int = 4
    early: bool = False  # fetch `w2` before the launch before has ended


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
    tiles = triton.cdiv(v, tile.tokens)
    meet = best.Meeting.of(tiles, 1)
    met = room(workspace, base.device, 2 * meet.words, meet.arrivals)
    early = tile.early and ahead.possible(w2)
    _step[(tiles + 1,)](
        base, previous, hidden, w1, w2, confidence, moved, token, margin, sure,
        met.words, met.arrivals, v, d, rank,
        TOKENS=tile.tokens, RANK=triton.next_power_of_2(rank), WIDTH=triton.next_power_of_2(d),
        GROUPS=meet.groups, EARLY=early,
        num_warps=tile.warps, launch_pdl=early,
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
    TOKENS: tl.constexpr, RANK: tl.constexpr, WIDTH: tl.constexpr, GROUPS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    tile, tiles = tl.program_id(0), tl.num_programs(0) - 1
    ahead.let_next_begin()
    if EARLY:
        if tile < tiles:
            ahead.fetch(w2, tile, 0, v, rank, TOKENS, RANK)
        ahead.wait()
    lane = tl.arange(0, RANK)
    row = tl.load(w1 + tl.load(previous) * rank + lane, mask=lane < rank, other=0.0)
    row = row.to(tl.float32)
    if tile == tiles:
        _trust(hidden, confidence, row, lane, d, rank, sure, WIDTH)
    else:
        _move(
            base, w2, row, lane, moved, token, margin, words, arrivals, tile, tiles, v, rank,
            TOKENS, GROUPS,
        )  # fmt: skip


@triton.jit
def _trust(  # type: ignore[no-untyped-def]
    hidden, confidence, row, lane, d, rank, sure, WIDTH: tl.constexpr
):
    """The slot's confidence, from its vector and the `row` of the token before it."""
    channel = tl.arange(0, WIDTH)
    x = tl.load(hidden + channel, mask=channel < d, other=0.0).to(tl.float32)
    head = tl.load(confidence + channel, mask=channel < d, other=0.0).to(tl.float32)
    tail = tl.load(confidence + d + lane, mask=lane < rank, other=0.0).to(tl.float32)
    tl.store(sure, tl.sigmoid(tl.sum(x * head, 0) + tl.sum(row * tail, 0)))


@triton.jit
def _move(  # type: ignore[no-untyped-def]
    base, w2, row, lane, moved, token, margin, words, arrivals, tile, tiles, v, rank,
    TOKENS: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """A tile of scores; whoever ends the last one names the best token."""
    index = (tile * TOKENS + tl.arange(0, TOKENS))[:, None]
    there = index < v
    at = w2 + index.to(tl.int64) * rank + lane[None, :]
    w = tl.load(at, mask=there & (lane < rank)[None, :], other=0.0).to(tl.float32)
    found = tl.sum(w * row[None, :], 1, keep_dims=True)
    found += tl.load(base + index, mask=there, other=0.0)
    tl.store(moved + index, found, mask=there)
    last, first, second, _ = best.conclude(
        words, arrivals, tile, tiles, found, index, there, GROUPS
    )
    if last:
        one = tl.arange(0, 1)
        tl.store(token + one, best.token_of(first))
        tl.store(margin + one, best.score_of(first) - best.score_of(second))
