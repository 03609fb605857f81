"""Mixture of MXFP4 experts for many rows: routes sorted by expert, one tile of one expert each.

The sort and the tile plan stay on the device; the number of programs follows from the shapes alone,
so nothing waits for a count. The first programs of a grid multiply by the shared expert, tile after
tile of rows. What the functions compute is what `kernels.moe` computes, but for a repeated expert,
each of whose slots holds its own share.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import moe, narrow
from kernels.launch import dot_type, output, require, require_activation, require_contiguous
from kernels.mxfp4 import Bank, reordered, require_bank


@dataclass(frozen=True, slots=True)
class Tile:
    """Launch of one of the two products; all powers of two."""

    rows: int  # routes of a program; the plan must have been made for as many
    columns: int  # outputs of a program; in `gate_up` as many of the gate and of the up matrix
    step: int  # channels a turn, 64 or more
    warps: int
    stages: int


GATE_UP = Tile(rows=128, columns=64, step=128, warps=8, stages=3)
DOWN = Tile(rows=128, columns=128, step=128, warps=8, stages=3)


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
    w13: Bank,
    shared: Tensor,
    shared_scale: Tensor,
    *,
    limit: float,
    out: Tensor | None = None,
    tile: Tile = GATE_UP,
    routes: Plan | None = None,
) -> Tensor:
    """`kernels.moe.gate_up` for any number of rows; `routes` is the choice's plan, if at hand."""
    (m, d), inner = x.shape, w13.outputs // 2
    require(chosen.dim() == 2 and chosen.shape[0] == m, "the choice does not fit the rows")
    slots = chosen.shape[1]
    require_activation("x", x)
    moe.check_weights(weights, chosen)
    moe.check_shared(shared, shared_scale, 2 * inner, d)
    require_bank("w13", w13, 2 * inner, d)
    hidden = output(
        out, (m, slots + 1, inner), x.dtype,
        x, chosen, weights, w13.codes, w13.scales, shared, shared_scale,
    )  # fmt: skip
    if hidden.numel():
        found = _plan(chosen, w13.experts, tile, routes)
        common = triton.cdiv(m, tile.rows)
        _gate_up[(triton.cdiv(inner, tile.columns), common + found.expert.numel())](
            x, reordered(x), found.order, found.expert, found.first, found.end, weights,
            w13.codes, w13.scales, shared.view(torch.uint8), shared_scale.view(torch.uint8), hidden,
            m, x.stride(0), d, inner, limit, w13.experts, common,
            w13.codes.stride(0), w13.scales.stride(0),
            SLOTS=slots, ROWS=tile.rows, COLUMNS=tile.columns, STEP=tile.step,
            TURNS=triton.cdiv(d, tile.step), TILES=w13.codes.shape[2],
            BLOCKS=shared_scale.shape[1], WHOLE=moe.whole(inner, d, tile.columns, tile.step),
            DOT=dot_type(x), num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return hidden


def down(
    hidden: Tensor,
    chosen: Tensor,
    w2: Bank,
    shared: Tensor,
    shared_scale: Tensor,
    *,
    out: Tensor | None = None,
    tile: Tile = DOWN,
    routes: Plan | None = None,
) -> Tensor:
    """`kernels.moe.down` for any number of rows; `routes` is the choice's plan, if at hand."""
    (m, every, inner), d = hidden.shape, w2.outputs
    require(chosen.shape == (m, every - 1), "the choice does not fit the hidden rows")
    require_activation("hidden", hidden)
    require_contiguous(hidden=hidden)
    moe.check_shared(shared, shared_scale, d, inner)
    require_bank("w2", w2, d, inner)
    parts = output(
        out, (m, every, d), torch.float32,
        hidden, chosen, w2.codes, w2.scales, shared, shared_scale,
    )  # fmt: skip
    if parts.numel():
        found = _plan(chosen, w2.experts, tile, routes)
        common = triton.cdiv(m, tile.rows)
        _down[(triton.cdiv(d, tile.columns), common + found.expert.numel())](
            hidden, reordered(hidden), found.order, found.expert, found.first, found.end,
            w2.codes, w2.scales, shared.view(torch.uint8), shared_scale.view(torch.uint8), parts,
            m, d, inner, w2.experts, common, w2.codes.stride(0), w2.scales.stride(0),
            SLOTS=every - 1, ROWS=tile.rows, COLUMNS=tile.columns, STEP=tile.step,
            TURNS=triton.cdiv(inner, tile.step), TILES=w2.codes.shape[2],
            BLOCKS=shared_scale.shape[1], WHOLE=moe.whole(d, inner, tile.columns, tile.step),
            DOT=dot_type(hidden), num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return parts


def _plan(chosen: Tensor, experts: int, tile: Tile, routes: Plan | None) -> Plan:
    found = plan(chosen, experts, tile.rows) if routes is None else routes
    require(found.rows == tile.rows, f"a plan for tiles of {found.rows} rows, not {tile.rows}")
    return found


@triton.jit
def _places(  # type: ignore[no-untyped-def]
    order, firsts, ends, tile, SLOTS: tl.constexpr, ROWS: tl.constexpr
):
    """A tile's routes, which of them there are, and their places among [m, t + 1]."""
    place = tl.load(firsts + tile) + tl.arange(0, ROWS)
    there = place < tl.load(ends + tile)
    route = tl.load(order + place, mask=there, other=0).to(tl.int64)
    return route, there, route + route // SLOTS


# Rows come in any number, and a kernel for each kind of number would be compiled for nothing.
@triton.jit(do_not_specialize=["m", "common"])
def _gate_up(  # type: ignore[no-untyped-def]
    x, turned, order, experts, firsts, ends, weights, codes, scales, shared, shared_scale, hidden,
    m, x_stride, d, inner, limit, count, common, code_stride, scale_stride,
    SLOTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
    TURNS: tl.constexpr, TILES: tl.constexpr, BLOCKS: tl.constexpr, WHOLE: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    if tl.program_id(1) < common:
        row = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        both = tl.arange(0, 2 * COLUMNS)
        line = tl.program_id(0) * COLUMNS + both % COLUMNS
        line = tl.where(line < inner, line + both // COLUMNS * inner, 2 * inner)
        acc = moe.common(
            x + row * x_stride, row < m, d, shared, shared_scale, line, 2 * inner,
            ROWS, 2 * COLUMNS, BLOCKS, WHOLE, DOT,
        )  # fmt: skip
        active = moe.swiglu(acc, limit, COLUMNS, ROWS)
        h_at = hidden + (row * (SLOTS + 1) + SLOTS)[None, :] * inner + column[:, None]
        keep = (row < m)[None, :] & (column < inner)[:, None]
        tl.store(h_at, active.to(hidden.dtype.element_ty), mask=keep)
    else:
        tile = tl.program_id(1) - common
        expert = tl.load(experts + tile).to(tl.int64)
        if expert < count:
            route, there, target = _places(order, firsts, ends, tile, SLOTS, ROWS)
            acc = moe.routed(
                turned + route // SLOTS * d, there, d,
                codes + expert * code_stride, scales + expert * scale_stride,
                moe.gate_and_up(tl.program_id(0), inner, COLUMNS), inner // 8,
                TILES, ROWS, 2 * COLUMNS, STEP, TURNS, WHOLE, True, DOT,
            )  # fmt: skip
            active = moe.swiglu(acc * narrow.E2M1_REPAIR, limit, COLUMNS, ROWS)
            active *= tl.load(weights + route, mask=there, other=0.0)[None, :]
            keep = there[None, :] & (column < inner)[:, None]
            h_at = hidden + target[None, :] * inner + column[:, None]
            tl.store(h_at, active.to(hidden.dtype.element_ty), mask=keep)


@triton.jit(do_not_specialize=["m", "common"])
def _down(  # type: ignore[no-untyped-def]
    hidden, turned, order, experts, firsts, ends, codes, scales, shared, shared_scale, parts,
    m, d, inner, count, common, code_stride, scale_stride,
    SLOTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
    TURNS: tl.constexpr, TILES: tl.constexpr, BLOCKS: tl.constexpr, WHOLE: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    if tl.program_id(1) < common:
        row = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        target = row * (SLOTS + 1) + SLOTS
        acc = moe.common(
            hidden + target * inner, row < m, inner, shared, shared_scale, column, d,
            ROWS, COLUMNS, BLOCKS, WHOLE, DOT,
        )  # fmt: skip
        keep = (row < m)[None, :] & (column < d)[:, None]
        tl.store(parts + target[None, :] * d + column[:, None], acc, mask=keep)
    else:
        tile = tl.program_id(1) - common
        expert = tl.load(experts + tile).to(tl.int64)
        if expert < count:
            _, there, target = _places(order, firsts, ends, tile, SLOTS, ROWS)
            acc = moe.routed(
                turned + target * inner, there, inner,
                codes + expert * code_stride, scales + expert * scale_stride,
                tl.program_id(0) * (COLUMNS // 16) + tl.arange(0, COLUMNS // 16), (d - 1) // 16,
                TILES, ROWS, COLUMNS, STEP, TURNS, WHOLE, True, DOT,
            )  # fmt: skip
            keep = there[None, :] & (column < d)[:, None]
            p_at = parts + target[None, :] * d + column[:, None]
            tl.store(p_at, acc * narrow.E2M1_REPAIR, mask=keep)
