"""Which experts a row visits, and with what weights: by affinity and bias, or by its token.

Affinity is sqrt(softplus(logit)); the bias takes part in the choice, never in the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import ahead, best, dense, meeting
from kernels.launch import DECODE_ROWS, require, require_activation, require_contiguous
from kernels.workspace import Workspace, room


@dataclass(frozen=True, slots=True)
class Tile:
    """The launch of `route`; all are powers of two but `stages`, `columns` 16 or more."""

    columns: int = 16  # experts of a program
    splits: int = 4  # programs that share their channels
    step: int = 128  # channels of a part at once
    warps: int = 8  # the last program has a row for each
    stages: int = 3
    parts: int = 8  # 1: warps share the columns; else as many as warps: they share the channels
    early: bool = True  # load the gate before the launch before has ended


TILE = Tile()
_LOWEST = tl.constexpr(-(1 << 31))  # below every score


def route(
    x: Tensor,
    gate: Tensor,
    bias: Tensor | None,
    tokens: Tensor | None,
    table: Tensor | None,
    *,
    count: int,
    scale: float,
    tile: Tile = TILE,
    workspace: Workspace | None = None,
) -> tuple[Tensor, Tensor]:
    """Experts int64 [m, count] and their weights for up to 8 rows `x` [m, d]; `gate` [e, d].

    By affinity and `bias` float32 [e] as in `choose`, or those of `tokens` int64 [m] in `table`
    int64 [vocabulary, count] as in `look_up`: one of the two. `x` and `gate` are BF16 or float32,
    logits float32. Raises ValueError for operands that do not fit.
    """
    routing = prepare(x, gate, bias, tokens, table, count, scale, tile, workspace)
    if x.shape[0]:
        _route[(routing.tiles, tile.splits)](
            *routing.operands, **routing.constants,
            num_warps=tile.warps, num_stages=tile.stages, launch_pdl=routing.constants["EARLY"],
        )  # fmt: skip
    return routing.chosen, routing.weights


class Routing(NamedTuple):
    """A launch of the router, ready but for its grid."""

    chosen: Tensor
    weights: Tensor
    tiles: int
    programs: int
    operands: tuple[Any, ...]
    constants: dict[str, Any]


def prepare(
    x: Tensor,
    gate: Tensor,
    bias: Tensor | None,
    tokens: Tensor | None,
    table: Tensor | None,
    count: int,
    scale: float,
    tile: Tile,
    workspace: Workspace | None,
) -> Routing:
    """Outputs and arguments of `share` for the operands of `route`, once they are found to fit."""
    (m, d), experts = x.shape, gate.shape[0]
    require(m <= DECODE_ROWS, f"{m} rows are no step")
    require_activation("x", x, d)
    dense.require_weight("gate", gate, d)
    require(1 <= count <= experts, f"{count} of {experts} experts cannot be chosen")
    if bias is None:
        _check_table(m, tokens, table, count)
    else:
        require(tokens is None and table is None, "experts come from a bias or a table, not both")
        _check_bias(bias, experts)
    require(tile.parts in (1, tile.warps), f"{tile.parts} parts for {tile.warps} warps")
    chosen = torch.empty((m, count), dtype=torch.int64, device=x.device)
    weights = torch.empty((m, count), dtype=torch.float32, device=x.device)
    tiles = triton.cdiv(experts, tile.columns)
    met = room(workspace, x.device, tile.splits * tiles * tile.columns * DECODE_ROWS, 1)
    share = tile.parts * tile.step
    turns = triton.cdiv(triton.cdiv(d, share), tile.splits)
    operands = (
        x, gate, bias, tokens, table, chosen, weights, met.parts, met.arrivals,
        m, x.stride(0), experts, d, scale,
    )  # fmt: skip
    constants = {
        "ROWS": DECODE_ROWS,
        "COLUMNS": tile.columns,
        "PARTS": tile.parts,
        "STEP": tile.step,
        "TURNS": turns,
        "SPLITS": tile.splits,
        "WHOLE": experts % tile.columns == 0 and turns * tile.splits * share == d,
        "DOT": dense.dot_type(x, gate),
        "COUNT": count,
        "SLOTS": triton.next_power_of_2(count),
        "BLOCK": triton.next_power_of_2(tiles * tile.columns),
        "BY_BIAS": bias is not None,
        "EARLY": tile.early,
    }
    return Routing(chosen, weights, tiles, tiles * tile.splits, operands, constants)


def choose(logits: Tensor, bias: Tensor, count: int, *, scale: float) -> tuple[Tensor, Tensor]:
    """The `count` best experts int64 [m, count] by affinity + `bias` float32 [e], best first.

    `logits` float32 [m, e]; of equals the lower expert comes first. Also their weights, float32
    [m, count]: shares of the chosen affinities times `scale`. Raises ValueError for operands that
    do not fit.
    """
    m, experts = logits.shape
    _check(logits)
    _check_bias(bias, experts)
    require(1 <= count <= experts, f"{count} of {experts} experts cannot be chosen")
    chosen = torch.empty((m, count), dtype=torch.int64, device=logits.device)
    weights = torch.empty((m, count), dtype=torch.float32, device=logits.device)
    if m:
        _choose[(m,)](
            logits, bias, chosen, weights, experts, scale,
            COUNT=count, SLOTS=triton.next_power_of_2(count),
            BLOCK=triton.next_power_of_2(experts), num_warps=1,
        )  # fmt: skip
    return chosen, weights


def look_up(
    logits: Tensor, tokens: Tensor, table: Tensor, *, scale: float
) -> tuple[Tensor, Tensor]:
    """Experts int64 [m, count] of `tokens` int64 [m] in `table` int64 [vocabulary, count]; weights.

    The weights are as in `choose`. Raises ValueError for operands that do not fit.
    """
    m, experts = logits.shape
    _check(logits)
    count = table.shape[1]
    _check_table(m, tokens, table, count)
    chosen = torch.empty((m, count), dtype=torch.int64, device=logits.device)
    weights = torch.empty((m, count), dtype=torch.float32, device=logits.device)
    if m:
        _look_up[(m,)](
            logits, tokens, table, chosen, weights, experts, scale,
            COUNT=count, SLOTS=triton.next_power_of_2(count), num_warps=1,
        )  # fmt: skip
    return chosen, weights


def _check(logits: Tensor) -> None:
    require(logits.dtype == torch.float32, f"logits are {logits.dtype}, not float32")
    require_contiguous(logits=logits)


def _check_bias(bias: Tensor, experts: int) -> None:
    require(bias.shape == (experts,), f"a bias {tuple(bias.shape)} for {experts} experts")
    require(bias.dtype == torch.float32, f"the bias is {bias.dtype}, not float32")
    require_contiguous(bias=bias)


def _check_table(m: int, tokens: Tensor | None, table: Tensor | None, count: int) -> None:
    if tokens is None or table is None:
        raise ValueError("without a bias, experts need tokens and a table")
    require(tokens.shape == (m,), f"tokens {tuple(tokens.shape)} for {m} rows")
    require(tokens.dtype == table.dtype == torch.int64, "tokens and table are not int64")
    require(table.shape[1] == count, f"a table of {table.shape[1]} experts a token, not {count}")
    require_contiguous(tokens=tokens, table=table)


@triton.jit(do_not_specialize=["m"])
def _route(  # type: ignore[no-untyped-def]
    x, gate, bias, tokens, table, chosen, weights, parts, arrivals, m, x_stride, experts, d, scale,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr, STEP: tl.constexpr,
    TURNS: tl.constexpr, SPLITS: tl.constexpr, WHOLE: tl.constexpr,
    DOT: tl.constexpr, COUNT: tl.constexpr, SLOTS: tl.constexpr, BLOCK: tl.constexpr,
    BY_BIAS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    share(
        x, gate, bias, tokens, table, chosen, weights, parts, arrivals, m, x_stride, experts, d,
        scale, tl.program_id(0), tl.program_id(1), tl.num_programs(0),
        ROWS, COLUMNS, PARTS, STEP, TURNS, SPLITS, WHOLE, DOT, COUNT, SLOTS, BLOCK, BY_BIAS,
        EARLY,
    )  # fmt: skip


@triton.jit
def share(  # type: ignore[no-untyped-def]
    x, gate, bias, tokens, table, chosen, weights, parts, arrivals, m, x_stride, experts, d, scale,
    tile, split, tiles,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr, STEP: tl.constexpr,
    TURNS: tl.constexpr, SPLITS: tl.constexpr, WHOLE: tl.constexpr,
    DOT: tl.constexpr, COUNT: tl.constexpr, SLOTS: tl.constexpr, BLOCK: tl.constexpr,
    BY_BIAS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Part `split` of the logits of tile `tile`; the last of all programs makes the choice."""
    width = tiles * COLUMNS
    part = dense.products(
        x, gate, tile, split, m, x_stride, experts, d,
        ROWS, COLUMNS, PARTS, STEP, TURNS, WHOLE, DOT, EARLY,
    )  # fmt: skip
    ahead.let_next_begin()
    row = tl.arange(0, ROWS)[None, :]
    column = (tile * COLUMNS + tl.arange(0, COLUMNS))[:, None]
    tl.store(parts + (split * ROWS + row) * width + column, part, mask=row < m)
    if meeting.arrive(arrivals) == tiles * SPLITS - 1:
        _conclude(
            parts, bias, tokens, table, chosen, weights, m, width, experts, scale,
            ROWS, SPLITS, COUNT, SLOTS, BLOCK, BY_BIAS,
        )  # fmt: skip
        tl.store(arrivals, 0)


@triton.jit
def _conclude(  # type: ignore[no-untyped-def]
    parts, bias, tokens, table, chosen, weights, m, width, experts, scale,
    ROWS: tl.constexpr, SPLITS: tl.constexpr, COUNT: tl.constexpr, SLOTS: tl.constexpr,
    BLOCK: tl.constexpr, BY_BIAS: tl.constexpr,
):  # fmt: skip
    """Add up the logits' `parts` and store every row's experts and weights.

    The last axis is what a warp reads at once, and rows come first: a row lies in one warp, and its
    maxima are found without the others. For the same reason the bias is read for every row.
    """
    LANES: tl.constexpr = min(BLOCK, 128)
    row, slot = tl.arange(0, ROWS), tl.arange(0, SLOTS)[None, :]
    chunk = tl.arange(0, BLOCK // LANES)[None, :, None]
    expert = chunk * LANES + tl.arange(0, LANES)[None, None, :]
    there = (row < m)[:, None, None] & (expert < width)
    logits = tl.zeros((ROWS, BLOCK // LANES, LANES), tl.float32)
    for split in tl.static_range(SPLITS):
        at = parts + (split * ROWS + row[:, None, None]) * width + expert
        logits += tl.load(at, mask=there, other=0.0, cache_modifier=".cg")
    affinity = _affinity(logits)
    if BY_BIAS:
        at = bias + expert + 0 * row[:, None, None]
        score = affinity + tl.load(at, mask=there & (expert < experts), other=0.0)
        keys = tl.where(expert < experts, best.ordered(score), _LOWEST)
    else:
        token = tl.load(tokens + row, mask=row < m, other=0)
    named = tl.zeros((ROWS, SLOTS), tl.int64)
    share = tl.zeros((ROWS, SLOTS), tl.float32)
    for turn in tl.static_range(COUNT):
        if BY_BIAS:
            most = tl.max(tl.max(keys, 1), 1)[:, None, None]
            found = tl.min(tl.min(tl.where(keys == most, expert, BLOCK), 1), 1)
            mine = expert == found[:, None, None]
            keys = tl.where(mine, _LOWEST, keys)
        else:
            found = tl.load(table + token * COUNT + turn, mask=row < m, other=0)
            mine = expert == found[:, None, None]
        value = tl.sum(tl.sum(tl.where(mine, affinity, 0.0), 1), 1)
        named = tl.where(slot == turn, found[:, None].to(tl.int64), named)
        share = tl.where(slot == turn, value[:, None], share)
    share = share / tl.sum(share, 1)[:, None] * scale
    at, keep = row[:, None] * COUNT + slot, (row < m)[:, None] & (slot < COUNT)
    tl.store(chosen + at, named, mask=keep)
    tl.store(weights + at, share, mask=keep)


@triton.jit
def _affinity(logit):  # type: ignore[no-untyped-def]
    """sqrt(max(z, 0) + log1p(exp(-|z|))); log1p by W. Kahan's quotient, as 1 + e may lose e."""
    e = tl.exp(-tl.abs(logit))
    one_more = 1.0 + e
    lost = one_more == 1.0
    quotient = e / tl.where(lost, 1.0, one_more - 1.0)
    small = tl.where(lost, e, tl.log(one_more) * quotient)
    return tl.sqrt_rn(tl.maximum(logit, 0.0) + small)


@triton.jit
def _choose(  # type: ignore[no-untyped-def]
    logits, bias, chosen, weights, experts, scale,
    COUNT: tl.constexpr, SLOTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    expert = tl.arange(0, BLOCK)
    there = expert < experts
    affinity = _affinity(tl.load(logits + row * experts + expert, mask=there, other=0.0))
    score = affinity + tl.load(bias + expert, mask=there, other=0.0)
    score = tl.where(there, score, float("-inf"))
    taken = there == 0
    slot = tl.arange(0, SLOTS)
    share = tl.zeros((SLOTS,), tl.float32)
    for turn in tl.static_range(COUNT):
        best = tl.max(score, 0)
        found = tl.min(tl.where((score == best) & (taken == 0), expert, BLOCK), 0)
        # NaN equals nothing: stay within the bank, the check of the logits speaks later.
        found = tl.minimum(found, experts - 1)
        mine = expert == found
        value = tl.sum(tl.where(mine, affinity, 0.0), 0)
        share = tl.where(slot == turn, value, share)
        tl.store(chosen + row * COUNT + turn, found.to(tl.int64))
        score = tl.where(mine, float("-inf"), score)
        taken = taken | mine
    share = share / tl.sum(share, 0) * scale
    tl.store(weights + row * COUNT + slot, share, mask=slot < COUNT)


@triton.jit
def _look_up(  # type: ignore[no-untyped-def]
    logits, tokens, table, chosen, weights, experts, scale,
    COUNT: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = tl.arange(0, SLOTS)
    there = slot < COUNT
    expert = tl.load(table + tl.load(tokens + row) * COUNT + slot, mask=there, other=0)
    affinity = _affinity(tl.load(logits + row * experts + expert, mask=there, other=0.0))
    affinity = tl.where(there, affinity, 0.0)
    tl.store(chosen + row * COUNT + slot, expert, mask=there)
    tl.store(weights + row * COUNT + slot, affinity / tl.sum(affinity, 0) * scale, mask=there)
