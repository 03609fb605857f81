"""Mixture of MXFP4 experts for many rows: routes sorted by expert, one tile of one expert each.

The sort and the tile plan stay on the device; the number of programs follows from the shapes alone,
so nothing waits for a count. What the functions compute is what `kernels.moe` computes, but for a
repeated expert, each of whose slots holds its own share.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import mxfp4, narrow
from kernels.launch import dot_type, output, require, require_activation, require_contiguous


@dataclass(frozen=True, slots=True)
class Tile:
    """Launch of one of the two products; all powers of two."""

    rows: int  # routes of a program; the plan must have been made for as many
    columns: int  # outputs of a program; in `gate_up` as many of the gate and of the up matrix
    step: int  # channels a turn, 32 or more
    warps: int
    stages: int


GATE_UP = Tile(rows=64, columns=64, step=64, warps=4, stages=3)
DOWN = Tile(rows=64, columns=128, step=64, warps=4, stages=3)


@dataclass(frozen=True, slots=True)
class Plan:
    """Which program multiplies which routes; int32, on the device of the choice."""

    order: Tensor  # [m t] routes by expert, within one in their own order
    expert: Tensor  # [tiles]; as many as there are experts: nothing to do
    first: Tensor  # [tiles] place in `order` of a tile's first route
    end: Tensor  # [tiles] and the place after the last of its expert
    rows: int


def plan(chosen: Tensor, experts: int, rows: int = GATE_UP.rows) -> Plan:
    """Tiles of up to `rows` routes of one expert each for `chosen` int [m, t]."""
    flat = chosen.flatten().long()
    order = flat.argsort(stable=True)
    every = torch.arange(experts + 1, device=flat.device)
    starts = torch.searchsorted(flat[order], every)
    ends = ((starts.diff() + rows - 1) // rows).cumsum(0)
    # Every expert wastes less than one tile.
    tiles = torch.arange(flat.numel() // rows + experts, device=flat.device)
    expert = torch.searchsorted(ends, tiles, right=True)
    inside = expert.clamp(max=experts - 1)
    before = torch.cat((ends.new_zeros(1), ends))[inside]
    first = starts[inside] + (tiles - before) * rows
    end = starts[inside + 1]
    return Plan(order.int(), expert.int(), first.int(), end.int(), rows)


def gate_up(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    w13: Tensor,
    s13: Tensor,
    *,
    limit: float,
    out: Tensor | None = None,
    tile: Tile = GATE_UP,
    routes: Plan | None = None,
) -> Tensor:
    """`kernels.moe.gate_up` for any number of rows; `routes` is the choice's plan, if at hand."""
    (m, d), inner = x.shape, w13.shape[1] // 2
    require(chosen.dim() == 2 and chosen.shape[0] == m, "the choice does not fit the rows")
    slots = chosen.shape[1]
    require(weights.shape == chosen.shape, f"weights {tuple(weights.shape)} do not fit the choice")
    require(weights.dtype == torch.float32, f"weights are {weights.dtype}, not float32")
    require_activation("x", x)
    require_contiguous(weights=weights)
    mxfp4.check("w13", w13, s13, 2 * inner, d)
    hidden = output(out, (m, slots, inner), x.dtype, x, chosen, weights, w13, s13)
    if hidden.numel():
        found = _plan(chosen, w13.shape[0], tile, routes)
        _gate_up[(triton.cdiv(inner, tile.columns), found.expert.numel())](
            x, found.order, found.expert, found.first, found.end, weights,
            w13.view(torch.uint8), s13.view(torch.uint8), hidden,
            x.stride(0), d, inner, limit, w13.shape[0],
            SLOTS=slots, ROWS=tile.rows, COLUMNS=tile.columns, STEP=tile.step,
            TURNS=triton.cdiv(d, tile.step), DOT=dot_type(x),
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return hidden


def down(
    hidden: Tensor,
    chosen: Tensor,
    w2: Tensor,
    s2: Tensor,
    *,
    out: Tensor | None = None,
    tile: Tile = DOWN,
    routes: Plan | None = None,
) -> Tensor:
    """`kernels.moe.down` for any number of rows; `routes` is the choice's plan, if at hand."""
    (m, slots, inner), d = hidden.shape, w2.shape[1]
    require(chosen.shape == (m, slots), "the choice does not fit the hidden rows")
    require_activation("hidden", hidden)
    require_contiguous(hidden=hidden)
    mxfp4.check("w2", w2, s2, d, inner)
    parts = output(out, (m, slots, d), torch.float32, hidden, chosen, w2, s2)
    if parts.numel():
        found = _plan(chosen, w2.shape[0], tile, routes)
        _down[(triton.cdiv(d, tile.columns), found.expert.numel())](
            hidden, found.order, found.expert, found.first, found.end,
            w2.view(torch.uint8), s2.view(torch.uint8), parts, d, inner, w2.shape[0],
            ROWS=tile.rows, COLUMNS=tile.columns, STEP=tile.step,
            TURNS=triton.cdiv(inner, tile.step), DOT=dot_type(hidden),
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return parts


def _plan(chosen: Tensor, experts: int, tile: Tile, routes: Plan | None) -> Plan:
    found = plan(chosen, experts, tile.rows) if routes is None else routes
    require(found.rows == tile.rows, f"a plan for tiles of {found.rows} rows, not {tile.rows}")
    return found


@triton.jit
def _turn(  # type: ignore[no-untyped-def]
    acc, even, odd, packed, scale, column, at, columns, channels,
    COLUMNS: tl.constexpr, STEP: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """`acc` plus the rows' channels at .. at + STEP times a matrix's rows `column`."""
    byte = at // 2 + tl.arange(0, STEP // 2)
    group = at // 32 + tl.arange(0, STEP // 32)
    there = (column < columns)[:, None]
    codes = tl.load(
        packed + column[:, None] * (channels // 2) + byte[None, :],
        mask=there & (byte < channels // 2)[None, :], other=0,
    )  # fmt: skip
    exponents = tl.load(
        scale + column[:, None] * (channels // 32) + group[None, :],
        mask=there & (group < channels // 32)[None, :], other=127,
    )  # fmt: skip
    each = tl.broadcast_to(exponents[:, :, None], (COLUMNS, STEP // 32, 16))
    low, high = narrow.e2m1(codes, tl.reshape(each, (COLUMNS, STEP // 2)), DOT)
    acc = tl.dot(even, tl.trans(low), acc, input_precision="ieee")
    return tl.dot(odd, tl.trans(high), acc, input_precision="ieee")


@triton.jit
def _halves(  # type: ignore[no-untyped-def]
    x_at, at, there, width, ROWS: tl.constexpr, STEP: tl.constexpr, DOT: tl.constexpr
):
    """Even and odd channels at .. at + STEP of the rows at `x_at`."""
    lane = at + tl.arange(0, STEP)
    mask = there[:, None] & (lane < width)[None, :]
    xs = tl.load(x_at[:, None] + lane[None, :], mask=mask, other=0.0)
    return tl.split(tl.reshape(xs.to(DOT), (ROWS, STEP // 2, 2)))


@triton.jit
def _gate_up(  # type: ignore[no-untyped-def]
    x, order, experts, firsts, ends, weights, w13, s13, hidden,
    x_stride, d, inner, limit, count,
    SLOTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
    TURNS: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(1)
    expert = tl.load(experts + tile).to(tl.int64)
    if expert >= count:
        return
    place = tl.load(firsts + tile) + tl.arange(0, ROWS)
    there = place < tl.load(ends + tile)
    route = tl.load(order + place, mask=there, other=0).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    x_at = x + route // SLOTS * x_stride
    packed = w13 + expert * inner * d
    scale = s13 + expert * inner * (d // 16)
    up_packed, up_scale = packed + inner * (d // 2), scale + inner * (d // 32)
    gate = tl.zeros((ROWS, COLUMNS), tl.float32)
    up = tl.zeros((ROWS, COLUMNS), tl.float32)
    for turn in range(TURNS):
        at = turn * STEP
        even, odd = _halves(x_at, at, there, d, ROWS, STEP, DOT)
        gate = _turn(gate, even, odd, packed, scale, column, at, inner, d, COLUMNS, STEP, DOT)
        up = _turn(up, even, odd, up_packed, up_scale, column, at, inner, d, COLUMNS, STEP, DOT)
    gate = tl.minimum(gate * narrow.E2M1_REPAIR, limit)
    up = tl.minimum(tl.maximum(up * narrow.E2M1_REPAIR, -limit), limit)
    share = tl.load(weights + route, mask=there, other=0.0)
    active = gate / (1.0 + tl.exp(-gate)) * up * share[:, None]
    keep = there[:, None] & (column < inner)[None, :]
    h_at = hidden + route[:, None] * inner + column[None, :]
    tl.store(h_at, active.to(hidden.dtype.element_ty), mask=keep)


@triton.jit
def _down(  # type: ignore[no-untyped-def]
    hidden, order, experts, firsts, ends, w2, s2, parts, d, inner, count,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, TURNS: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(1)
    expert = tl.load(experts + tile).to(tl.int64)
    if expert >= count:
        return
    place = tl.load(firsts + tile) + tl.arange(0, ROWS)
    there = place < tl.load(ends + tile)
    route = tl.load(order + place, mask=there, other=0).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    packed = w2 + expert * d * (inner // 2)
    scale = s2 + expert * d * (inner // 32)
    acc = tl.zeros((ROWS, COLUMNS), tl.float32)
    for turn in range(TURNS):
        at = turn * STEP
        even, odd = _halves(hidden + route * inner, at, there, inner, ROWS, STEP, DOT)
        acc = _turn(acc, even, odd, packed, scale, column, at, d, inner, COLUMNS, STEP, DOT)
    keep = there[:, None] & (column < d)[None, :]
    p_at = parts + route[:, None] * d + column[None, :]
    tl.store(p_at, acc * narrow.E2M1_REPAIR, mask=keep)
