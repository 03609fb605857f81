"""Mixture of MXFP4 experts for a decode or verify step of up to eight rows, the shared one beside.

One program multiplies all rows of the step by one tile of one expert's matrix, and keeps the
products of the rows that chose it: the tensor core's tile is eight rows wide whatever happens, so a
second row on an expert costs nothing, nothing is gathered or sorted, and a row's bits do not depend
on its company. Of the programs that meet the same expert the first does the work, the others end.
The first programs of a grid multiply by the shared expert, whose FP8 weights weigh twice as much.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import fp8_linear, narrow
from kernels.launch import (
    DECODE_ROWS,
    dot_type,
    output,
    require,
    require_activation,
    require_contiguous,
)
from kernels.mxfp4 import ROWS, Bank, require_bank


@dataclass(frozen=True, slots=True)
class Tile:
    """Launch of one of the two products; all powers of two."""

    columns: (
        int  # 16 or more outputs of a program; `gate_up`: as many of the gate and the up matrix
    )
    step: int  # channels a turn, 64 or more
    shared: int  # programs of the shared expert for one of another; 16 outputs or more each
    warps: int
    stages: int


GATE_UP = Tile(columns=32, step=256, shared=2, warps=2, stages=4)
DOWN = Tile(columns=64, step=256, shared=2, warps=2, stages=4)


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
) -> Tensor:
    """Hidden rows [m, t + 1, i] of the `chosen` experts, weighted, and of the shared one, last.

    `x` [m, d] BF16 or float32, m <= 8; `chosen` int [m, t]; `weights` float32 [m, t]; `w13` the
    bank of 2 i outputs, gate rows first; `shared` E4M3 [2 i, d] likewise, `shared_scale` E8M0
    [ceil(2 i / 128), ceil(d / 128)]. Each hidden value is silu(min(gate, limit)) *
    clamp(up, -limit, limit) * weight in float32, then of `x.dtype`. A repeated expert's weights
    meet in its first slot; its other slots are zero. Raises ValueError for operands that do not
    fit.
    """
    (m, d), inner = x.shape, w13.outputs // 2
    slots = _check(x, chosen, d)
    require_contiguous(x=x)
    check_weights(weights, chosen)
    check_shared(shared, shared_scale, 2 * inner, d)
    require_bank("w13", w13, 2 * inner, d)
    hidden = output(
        out, (m, slots + 1, inner), x.dtype,
        x, chosen, weights, w13.codes, w13.scales, shared, shared_scale,
    )  # fmt: skip
    if hidden.numel():
        require(inner % ROWS == 0, f"{inner} hidden channels are no whole tiles of {ROWS}")
        _gate_up[(triton.cdiv(inner, tile.columns), tile.shared + m * slots)](
            x, chosen, weights, w13.codes, w13.scales,
            shared.view(torch.uint8), shared_scale.view(torch.uint8), hidden,
            m, d, inner, limit, w13.codes.stride(0), w13.scales.stride(0),
            SLOTS=slots, ROUTES=_routes(slots), ROWS=DECODE_ROWS, COLUMNS=tile.columns,
            STEP=tile.step, TURNS=triton.cdiv(d, tile.step), TILES=w13.codes.shape[2],
            SHARED=tile.shared, BLOCKS=shared_scale.shape[1],
            WHOLE=whole(inner, d, tile.columns, tile.step), DOT=dot_type(x),
            num_warps=tile.warps, num_stages=tile.stages,
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
) -> Tensor:
    """Float32 parts [m, t + 1, d] of the output, zero in a repeated expert's later slots.

    `hidden` [m, t + 1, i] contiguous, BF16 or float32; `w2` the bank of d outputs; `shared` E4M3
    [d, i] and `shared_scale` E8M0 [ceil(d / 128), ceil(i / 128)] give the last part. Raises
    ValueError for operands that do not fit.
    """
    (m, every, inner), d = hidden.shape, w2.outputs
    slots = _check(hidden, chosen, inner)
    require(every == slots + 1, f"hidden {tuple(hidden.shape)} does not fit the choice")
    require_contiguous(hidden=hidden)
    check_shared(shared, shared_scale, d, inner)
    require_bank("w2", w2, d, inner)
    parts = output(
        out, (m, slots + 1, d), torch.float32,
        hidden, chosen, w2.codes, w2.scales, shared, shared_scale,
    )  # fmt: skip
    if parts.numel():
        _down[(triton.cdiv(d, tile.columns), tile.shared + m * slots)](
            hidden, chosen, w2.codes, w2.scales,
            shared.view(torch.uint8), shared_scale.view(torch.uint8), parts,
            m, d, inner, w2.codes.stride(0), w2.scales.stride(0),
            SLOTS=slots, ROUTES=_routes(slots), ROWS=DECODE_ROWS, COLUMNS=tile.columns,
            STEP=tile.step, TURNS=triton.cdiv(inner, tile.step), TILES=w2.codes.shape[2],
            SHARED=tile.shared, BLOCKS=shared_scale.shape[1],
            WHOLE=whole(d, inner, tile.columns, tile.step), DOT=dot_type(hidden),
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return parts


def check_weights(weights: Tensor, chosen: Tensor) -> None:
    """Refuse `weights` that are not one float32 number for each of `chosen`."""
    require(weights.shape == chosen.shape, f"weights {tuple(weights.shape)} do not fit the choice")
    require(weights.dtype == torch.float32, f"weights are {weights.dtype}, not float32")
    require_contiguous(weights=weights)


def check_shared(weight: Tensor, scale: Tensor, outputs: int, channels: int) -> None:
    """Refuse a shared expert's matrix that is not `outputs` x `channels` E4M3 weights."""
    block = fp8_linear.BLOCK
    require(weight.dtype == torch.float8_e4m3fn, f"the shared expert is {weight.dtype}, not E4M3")
    require(
        weight.shape == (outputs, channels)
        and scale.shape == (triton.cdiv(outputs, block), triton.cdiv(channels, block)),
        f"the shared expert {tuple(weight.shape)} with scales {tuple(scale.shape)} "
        f"is not {outputs} x {channels}",
    )
    require_contiguous(shared=weight, shared_scale=scale)


def _check(x: Tensor, chosen: Tensor, width: int) -> int:
    require(x.shape[0] <= DECODE_ROWS, f"{x.shape[0]} rows are more than {DECODE_ROWS}: sort them")
    require(
        chosen.dim() == 2 and chosen.shape[0] == x.shape[0],
        f"a choice {tuple(chosen.shape)} does not fit {x.shape[0]} rows",
    )
    require(chosen.dtype in (torch.int32, torch.int64), f"the choice is {chosen.dtype}")
    require_contiguous(chosen=chosen)
    require_activation("x", x, width)
    return chosen.shape[1]


def _routes(slots: int) -> int:
    """Room for the choices of a full step: the same for every width."""
    return triton.next_power_of_2(DECODE_ROWS * slots)


def whole(outputs: int, channels: int, columns: int, step: int) -> bool:
    """Whether tiles of `columns` outputs and `step` channels need no masks."""
    return outputs % columns == 0 and channels % step == 0 and channels % fp8_linear.BLOCK == 0


@triton.jit
def _met_before(chosen, route, routes, ROUTES: tl.constexpr):  # type: ignore[no-untyped-def]
    """How many earlier routes of the step chose the expert of `route`."""
    at = tl.arange(0, ROUTES)
    others = tl.load(chosen + at, mask=at < routes, other=-1)
    return tl.sum(((others == tl.load(chosen + route)) & (at < route)).to(tl.int32), 0)


@triton.jit
def _rows(x_at, at, there, width, STEP: tl.constexpr, WHOLE: tl.constexpr, DOT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Channels at .. at + STEP of the rows at `x_at`, as a right operand."""
    lane = at + tl.arange(0, STEP)
    mask = there[:, None] if WHOLE else there[:, None] & (lane < width)[None, :]
    return tl.trans(tl.load(x_at[:, None] + lane[None, :], mask=mask, other=0.0).to(DOT))


@triton.jit
def routed(  # type: ignore[no-untyped-def]
    x_at, there, width, codes, scales, tile, last,
    TILES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
    TURNS: tl.constexpr, WHOLE: tl.constexpr, REORDERED: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Products [COLUMNS, ROWS] of a bank's row tiles `tile` [COLUMNS // 16], times 2 ** -32.

    Tiles after `last` are read as `last`, channel tiles after the bank's as its last one: whoever
    calls masks the former, and `x` is zero there.
    """
    RUN: tl.constexpr = STEP if STEP < 256 else 256  # channels of a tile in a turn
    lane = tl.arange(0, 32)
    tile = tl.minimum(tile, last).to(tl.int64) * TILES
    slab = tl.arange(0, STEP // 64)
    run = tl.arange(0, STEP // RUN)
    acc = tl.zeros((COLUMNS, ROWS), tl.float32)
    for turn in range(TURNS):
        xs = _rows(x_at, turn * STEP, there, width, STEP, WHOLE, DOT)
        part, whole = turn * (STEP // 64) + slab, turn * (STEP // RUN) + run
        if not WHOLE:
            part = tl.minimum(part, TILES * 4 - 1)
            whole = tl.minimum(whole, TILES * (256 // RUN) - 1)
        code_at = codes + tile[None, :, None, None] * 512 + part[:, None, None, None] * 128
        code_at += lane[None, None, :, None] * 4 + tl.arange(0, 4)[None, None, None, :]
        at = whole // (256 // RUN) * 64 + whole % (256 // RUN) * (RUN // 32)
        scale_at = scales + tile[None, :, None, None] * 64 + at[:, None, None, None]
        scale_at += (lane // 4)[None, None, :, None] * 8
        scale_at += tl.arange(0, RUN // 32)[None, None, None, :]
        w = _weights(
            tl.load(code_at), tl.load(scale_at), COLUMNS // 16, STEP, RUN, REORDERED, DOT
        )  # fmt: skip
        acc = tl.dot(w, xs, acc, input_precision="ieee")
    return acc


@triton.jit
def gate_and_up(block, inner, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Row tiles of COLUMNS gate rows from block * COLUMNS on, then of their up rows."""
    both = tl.arange(0, COLUMNS // 8)
    tile = block * (COLUMNS // 16) + both % (COLUMNS // 16)
    return tl.minimum(tile, inner // 16 - 1) + both // (COLUMNS // 16) * (inner // 16)


@triton.jit
def _weights(  # type: ignore[no-untyped-def]
    words, scales, TILES: tl.constexpr, STEP: tl.constexpr, RUN: tl.constexpr,
    REORDERED: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Weights [16 TILES, STEP] of words [STEP / 64, TILES, 32, 4], channels as in memory or not."""
    each = tl.broadcast_to(scales[:, :, :, :, None], (STEP // RUN, TILES, 32, RUN // 32, 2))
    each = tl.reshape(each, (STEP // RUN, TILES, 32, RUN // 64, 4))
    each = tl.reshape(tl.permute(each, (0, 3, 1, 2, 4)), (STEP // 64, TILES, 32, 4))
    w = narrow.e2m1(words, each, DOT)
    w = tl.reshape(w, (STEP // 64, TILES, 8, 4, 2, 2, 2, 2, 2))
    if REORDERED:
        w = tl.permute(w, (1, 8, 2, 0, 4, 6, 7, 3, 5))
    else:
        w = tl.permute(w, (1, 8, 2, 0, 4, 7, 3, 6, 5))
    return tl.reshape(w, (16 * TILES, STEP))


@triton.jit
def common(  # type: ignore[no-untyped-def]
    x_at, there, width, weight, scale, line, lines,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCKS: tl.constexpr, WHOLE: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """Products [COLUMNS, ROWS] of the shared expert's rows `line`; zeros from row `lines` on."""
    lane = tl.arange(0, 128)
    half = tl.arange(0, COLUMNS) // (COLUMNS // 2)
    w_at = weight + line[:, None] * width + lane[None, :]
    s_at = scale + line // 128 * BLOCKS
    # The lower and the upper half of whole tiles have one scale each.
    low_at = scale + tl.min(line, 0) // 128 * BLOCKS
    high_at = scale + tl.max(line, 0) // 128 * BLOCKS
    acc = tl.zeros((COLUMNS, ROWS), tl.float32)
    for step in range(BLOCKS):
        xs = _rows(x_at, step * 128, there, width, 128, WHOLE, DOT)
        if WHOLE:
            w = tl.load(w_at + step * 128)
            low, high = narrow.e8m0(tl.load(low_at + step)), narrow.e8m0(tl.load(high_at + step))
            size = tl.where(half == 0, low, high)
        else:
            inside = (line < lines)[:, None] & (step * 128 + lane < width)[None, :]
            w = tl.load(w_at + step * 128, mask=inside, other=0)
            size = narrow.e8m0(tl.load(s_at + step, mask=line < lines, other=127))
        acc += tl.dot(narrow.e4m3(w, DOT), xs, input_precision="ieee") * size[:, None]
    return acc


@triton.jit
def swiglu(both, limit, COLUMNS: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The clamped SwiGLU of COLUMNS gate rows over as many up rows."""
    gate, up = tl.split(tl.permute(tl.reshape(both, (2, COLUMNS, ROWS)), (1, 2, 0)))
    gate = tl.minimum(gate, limit)
    return gate / (1.0 + tl.exp(-gate)) * tl.minimum(tl.maximum(up, -limit), limit)


@triton.jit(do_not_specialize=["m"])
def _gate_up(  # type: ignore[no-untyped-def]
    x, chosen, weights, codes, scales, shared, shared_scale, hidden,
    m, d, inner, limit, code_stride, scale_stride,
    SLOTS: tl.constexpr, ROUTES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    STEP: tl.constexpr, TURNS: tl.constexpr, TILES: tl.constexpr, SHARED: tl.constexpr,
    BLOCKS: tl.constexpr, WHOLE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, ROWS)
    x_at = x + row * d
    part = tl.program_id(1)
    if part < SHARED:
        PART: tl.constexpr = COLUMNS // SHARED
        column = (tl.program_id(0) * SHARED + part) * PART + tl.arange(0, PART)
        both = tl.arange(0, 2 * PART)
        line = (tl.program_id(0) * SHARED + part) * PART + both % PART
        line = tl.where(line < inner, line + both // PART * inner, 2 * inner)
        acc = common(
            x_at, row < m, d, shared, shared_scale, line, 2 * inner,
            ROWS, 2 * PART, BLOCKS, WHOLE, DOT,
        )  # fmt: skip
        active = swiglu(acc, limit, PART, ROWS)
        h_at = hidden + (row * (SLOTS + 1) + SLOTS)[None, :] * inner + column[:, None]
        keep = (row < m)[None, :] & (column < inner)[:, None]
        tl.store(h_at, active.to(hidden.dtype.element_ty), mask=keep)
    else:
        route = part - SHARED
        if _met_before(chosen, route, m * SLOTS, ROUTES) == 0:
            expert = tl.load(chosen + route).to(tl.int64)
            tile = gate_and_up(tl.program_id(0), inner, COLUMNS)
            acc = routed(
                x_at, row < m, d, codes + expert * code_stride, scales + expert * scale_stride,
                tile, inner // 8, TILES, ROWS, 2 * COLUMNS, STEP, TURNS, WHOLE, False, DOT,
            )  # fmt: skip
            active = swiglu(acc * narrow.E2M1_REPAIR, limit, COLUMNS, ROWS)
            _share_out(active, chosen, weights, expert, hidden, m, inner, SLOTS, ROWS, COLUMNS)


@triton.jit
def _share_out(  # type: ignore[no-untyped-def]
    active, chosen, weights, expert, hidden, m, inner,
    SLOTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """`active` times its rows' weights for `expert`, into their first slots that chose it."""
    row = tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    share = tl.zeros((ROWS,), tl.float32)
    for slot in tl.static_range(SLOTS):
        at = row * SLOTS + slot
        mine = tl.load(chosen + at, mask=row < m, other=-1) == expert
        share += tl.where(mine, tl.load(weights + at, mask=row < m, other=0.0), 0.0)
    active *= share[None, :]
    open_ = row < m
    for slot in tl.static_range(SLOTS):
        mine = tl.load(chosen + row * SLOTS + slot, mask=row < m, other=-1) == expert
        value = tl.where(open_[None, :], active, 0.0)
        h_at = hidden + (row * (SLOTS + 1) + slot)[None, :] * inner + column[:, None]
        keep = (mine & (row < m))[None, :] & (column < inner)[:, None]
        tl.store(h_at, value.to(hidden.dtype.element_ty), mask=keep)
        open_ = open_ & (mine == 0)


@triton.jit(do_not_specialize=["m"])
def _down(  # type: ignore[no-untyped-def]
    hidden, chosen, codes, scales, shared, shared_scale, parts,
    m, d, inner, code_stride, scale_stride,
    SLOTS: tl.constexpr, ROUTES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    STEP: tl.constexpr, TURNS: tl.constexpr, TILES: tl.constexpr, SHARED: tl.constexpr,
    BLOCKS: tl.constexpr, WHOLE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, ROWS)
    part = tl.program_id(1)
    if part < SHARED:
        PART: tl.constexpr = COLUMNS // SHARED
        column = (tl.program_id(0) * SHARED + part) * PART + tl.arange(0, PART)
        at = row * (SLOTS + 1) + SLOTS
        acc = common(
            hidden + at * inner, row < m, inner, shared, shared_scale, column, d,
            ROWS, PART, BLOCKS, WHOLE, DOT,
        )  # fmt: skip
        keep = (row < m)[None, :] & (column < d)[:, None]
        tl.store(parts + at[None, :] * d + column[:, None], acc, mask=keep)
    else:
        route = part - SHARED
        if _met_before(chosen, route, m * SLOTS, ROUTES) == 0:
            expert = tl.load(chosen + route).to(tl.int64)
            column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
            first = tl.full((ROWS,), SLOTS, tl.int32)
            for back in tl.static_range(SLOTS):
                slot = SLOTS - 1 - back
                mine = tl.load(chosen + row * SLOTS + slot, mask=row < m, other=-1) == expert
                first = tl.where(mine, slot, first)
            tile = tl.program_id(0) * (COLUMNS // 16) + tl.arange(0, COLUMNS // 16)
            acc = routed(
                hidden + (row * (SLOTS + 1) + first) * inner, (first < SLOTS) & (row < m), inner,
                codes + expert * code_stride, scales + expert * scale_stride,
                tile, (d - 1) // 16, TILES, ROWS, COLUMNS, STEP, TURNS, WHOLE, False, DOT,
            )  # fmt: skip
            acc *= narrow.E2M1_REPAIR
            for slot in tl.static_range(SLOTS):
                mine = tl.load(chosen + row * SLOTS + slot, mask=row < m, other=-1) == expert
                value = tl.where((first == slot)[None, :], acc, 0.0)
                at = row * (SLOTS + 1) + slot
                keep = (mine & (row < m))[None, :] & (column < d)[:, None]
                tl.store(parts + at[None, :] * d + column[:, None], value, mask=keep)
