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

from kernels import ahead, fp8_linear, narrow
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
    shared: int  # programs of the shared expert for one of another; 16 rows or more of it each
    warps: int
    stages: int
    parts: int = 1  # 1: warps share the outputs; else as many as warps: they share the channels
    early: bool = False  # begin before the launch before has ended


GATE_UP = Tile(columns=16, step=128, shared=2, warps=1, stages=3, early=True)
DOWN = Tile(columns=32, step=128, shared=2, warps=1, stages=3)


def gate_up(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    w13: Bank,
    shared: Tensor,
    shared_scale: Tensor,
    *,
    limit: float,
    begun: Tensor | None = None,
    out: Tensor | None = None,
    tile: Tile = GATE_UP,
) -> Tensor:
    """Hidden rows [m, t + 1, i] of the `chosen` experts, weighted, and of the shared one, last.

    `x` [m, d] BF16 or float32, m <= 8; `chosen` int [m, t]; `weights` float32 [m, t]; `w13` the
    bank of 2 i outputs, gate rows first; `shared` E4M3 [2 i, d] likewise, `shared_scale` E8M0
    [ceil(2 i / 128), ceil(d / 128)]. Each hidden value is silu(min(gate, limit)) *
    clamp(up, -limit, limit) * weight in float32, then of `x.dtype`. A repeated expert's weights
    meet in its first slot; its other slots are zero. `begun` rows, which have the shared expert's
    already, are completed and returned. Raises ValueError for operands that do not fit.
    """
    (m, d), inner = x.shape, w13.outputs // 2
    slots = _check(x, chosen, d)
    require_contiguous(x=x)
    check_weights(weights, chosen)
    check_shared(shared, shared_scale, 2 * inner, d)
    _check_tile(tile)
    require_bank("w13", w13, 2 * inner, d)
    hidden = output(
        out if begun is None else begun, (m, slots + 1, inner), x.dtype,
        x, chosen, weights, w13.codes, w13.scales, shared, shared_scale,
    )  # fmt: skip
    if hidden.numel():
        require(inner % ROWS == 0, f"{inner} hidden channels are no whole tiles of {ROWS}")
        programs = tile.shared if begun is None else 0
        _gate_up[(triton.cdiv(inner, tile.columns), programs + m * slots)](
            x, chosen, weights, w13.codes, w13.scales,
            shared.view(torch.uint8), shared_scale.view(torch.uint8), hidden,
            m, d, inner, limit, w13.codes.stride(0), w13.scales.stride(0),
            SLOTS=slots, ROUTES=_routes(slots), ROWS=DECODE_ROWS, COLUMNS=tile.columns,
            STEP=tile.step, PARTS=tile.parts, TURNS=triton.cdiv(d, tile.step * tile.parts),
            TILES=w13.codes.shape[2], SHARED=programs, BLOCKS=shared_scale.shape[1],
            WHOLE=whole(inner, d, tile.columns, tile.step * tile.parts), DOT=dot_type(x),
            EARLY=tile.early,
            num_warps=tile.warps, num_stages=tile.stages, launch_pdl=tile.early,
        )  # fmt: skip
    return hidden


def begin(
    x: Tensor,
    shared: Tensor,
    shared_scale: Tensor,
    *,
    slots: int,
    limit: float,
    tile: Tile = GATE_UP,
) -> Tensor:
    """Rows [m, slots + 1, i] for `gate_up` to complete: the shared expert's, in the last slot.

    Operands as there. Raises ValueError for those that do not fit.
    """
    hidden = begun_rows(x, shared, shared_scale, slots)
    (m, d), (_, every, inner) = x.shape, hidden.shape
    _check_tile(tile)
    if hidden.numel():
        columns = tile.columns // tile.shared
        _begin[(triton.cdiv(inner, columns),)](
            x, shared.view(torch.uint8), shared_scale.view(torch.uint8), hidden,
            m, d, inner, limit,
            SLOTS=every - 1, ROWS=DECODE_ROWS, COLUMNS=columns, PARTS=tile.parts,
            BLOCKS=shared_scale.shape[1],
            WHOLE=whole(inner, d, columns, tile.step * tile.parts), DOT=dot_type(x),
            EARLY=tile.early,
            num_warps=tile.warps, num_stages=tile.stages, launch_pdl=tile.early,
        )  # fmt: skip
    return hidden


def begun_rows(x: Tensor, shared: Tensor, shared_scale: Tensor, slots: int) -> Tensor:
    """Room [m, slots + 1, i] for the hidden rows of `x`, once the operands are found to fit."""
    (m, d), inner = x.shape, shared.shape[0] // 2
    require(m <= DECODE_ROWS, f"{m} rows are more than {DECODE_ROWS}: sort them")
    require_activation("x", x, d)
    require_contiguous(x=x)
    check_shared(shared, shared_scale, 2 * inner, d)
    require(inner % ROWS == 0, f"{inner} hidden channels are no whole tiles of {ROWS}")
    return x.new_empty((m, slots + 1, inner))


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
    _check_tile(tile)
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
            STEP=tile.step, PARTS=tile.parts, TURNS=triton.cdiv(inner, tile.step * tile.parts),
            TILES=w2.codes.shape[2], SHARED=tile.shared, BLOCKS=shared_scale.shape[1],
            WHOLE=whole(d, inner, tile.columns, tile.step * tile.parts), DOT=dot_type(hidden),
            EARLY=tile.early,
            num_warps=tile.warps, num_stages=tile.stages, launch_pdl=tile.early,
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


def _check_tile(tile: Tile) -> None:
    require(tile.parts in (1, tile.warps), f"{tile.parts} parts for {tile.warps} warps")


def _routes(slots: int) -> int:
    """Room for the choices of a full step: the same for every width."""
    return triton.next_power_of_2(DECODE_ROWS * slots)


def whole(outputs: int, channels: int, columns: int, step: int) -> bool:
    """Whether tiles of `columns` outputs and `step` channels need no masks and few FP8 scales."""
    block = fp8_linear.BLOCK
    fits = outputs % columns == 0 and channels % step == 0 and channels % block == 0
    return fits and columns <= block


@triton.jit
def _met_before(chosen, route, routes, ROUTES: tl.constexpr):  # type: ignore[no-untyped-def]
    """How many earlier routes of the step chose the expert of `route`."""
    at = tl.arange(0, ROUTES)
    others = tl.load(chosen + at, mask=at < routes, other=-1)
    return tl.sum(((others == tl.load(chosen + route)) & (at < route)).to(tl.int32), 0)


@triton.jit
def _rows(  # type: ignore[no-untyped-def]
    x_at, at, there, width,
    PARTS: tl.constexpr, STEP: tl.constexpr, WHOLE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Channels at .. at + PARTS * STEP of the rows at `x_at`, as right operands [PARTS,] STEP."""
    if PARTS == 1:
        lane = (at + tl.arange(0, STEP))[None, :]
        x_at, there = x_at[:, None], there[:, None]
    else:
        lane = tl.arange(0, PARTS)[:, None, None] * STEP + tl.arange(0, STEP)[None, None, :] + at
        x_at, there = x_at[None, :, None], there[None, :, None]
    mask = there if WHOLE else there & (lane < width)
    xs = tl.load(x_at + lane, mask=mask, other=0.0).to(DOT)
    return tl.trans(xs) if PARTS == 1 else tl.permute(xs, (0, 2, 1))


@triton.jit
def routed(  # type: ignore[no-untyped-def]
    x_at, there, width, codes, scales, tile, last,
    TILES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
    PARTS: tl.constexpr, TURNS: tl.constexpr, WHOLE: tl.constexpr, REORDERED: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """Products [COLUMNS, ROWS] of a bank's row tiles `tile` [COLUMNS // 16], times 2 ** -32.

    A turn takes PARTS * STEP channels; if there are several parts, each warp has one, and they are
    added in the end. Tiles after `last` are read as `last`, channel tiles after the bank's as its
    last one: whoever calls masks the former, and `x` is zero there.
    """
    RUN: tl.constexpr = STEP if STEP < 256 else 256  # channels of a tile in a turn
    SLABS: tl.constexpr = STEP // 64
    RUNS: tl.constexpr = STEP // RUN
    lane = tl.arange(0, 32)[None, None, None, :, None]
    tile = tl.minimum(tile, last).to(tl.int64) * TILES
    tile = tile[None, None, :, None, None]
    each = tl.arange(0, PARTS)[:, None, None, None, None]
    slabs = each * SLABS + tl.arange(0, SLABS)[None, :, None, None, None]
    runs = each * RUNS + tl.arange(0, RUNS)[None, :, None, None, None]
    word, group = tl.arange(0, 4), tl.arange(0, RUN // 32)
    code_in = codes + tile * 512 + lane * 4 + word[None, None, None, None, :]
    scale_in = scales + tile * 64 + lane // 4 * 8 + group[None, None, None, None, :]
    if PARTS == 1:
        acc = tl.zeros((COLUMNS, ROWS), tl.float32)
    else:
        acc = tl.zeros((PARTS, COLUMNS, ROWS), tl.float32)
    for turn in range(TURNS):
        xs = _rows(x_at, turn * (PARTS * STEP), there, width, PARTS, STEP, WHOLE, DOT)
        slab, run = turn * (PARTS * SLABS) + slabs, turn * (PARTS * RUNS) + runs
        if not WHOLE:
            slab = tl.minimum(slab, TILES * 4 - 1)
            run = tl.minimum(run, TILES * (256 // RUN) - 1)
        at = run // (256 // RUN) * 64 + run % (256 // RUN) * (RUN // 32)
        w = _weights(
            tl.load(code_in + slab * 128), tl.load(scale_in + at),
            PARTS, COLUMNS // 16, STEP, RUN, REORDERED, DOT,
        )  # fmt: skip
        acc = tl.dot(w, xs, acc, input_precision="ieee")
    if PARTS > 1:
        acc = tl.sum(acc, 0)
    return acc


@triton.jit
def gate_and_up(block, inner, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Row tiles of COLUMNS gate rows from block * COLUMNS on, then of their up rows."""
    both = tl.arange(0, COLUMNS // 8)
    tile = block * (COLUMNS // 16) + both % (COLUMNS // 16)
    return tl.minimum(tile, inner // 16 - 1) + both // (COLUMNS // 16) * (inner // 16)


@triton.jit
def _weights(  # type: ignore[no-untyped-def]
    words, scales, PARTS: tl.constexpr, TILES: tl.constexpr, STEP: tl.constexpr, RUN: tl.constexpr,
    REORDERED: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Weights [PARTS,] [16 TILES, STEP] of words [PARTS, STEP / 64, TILES, 32, 4].

    Channels are as in memory or `reordered`.
    """
    P: tl.constexpr = PARTS
    each = tl.reshape(scales, (P, STEP // RUN, TILES, 32, RUN // 64, 2))
    each = tl.reshape(tl.permute(each, (0, 1, 4, 2, 3, 5)), (P, STEP // 64, TILES, 32, 2))
    first, second = tl.split(tl.reshape(words, (P, STEP // 64, TILES, 32, 2, 2)))
    w = narrow.e2m1(first, second, each, DOT)
    w = tl.reshape(w, (P, STEP // 64, TILES, 8, 4, 2, 2, 2, 2, 2))
    if REORDERED:
        w = tl.permute(w, (0, 2, 9, 3, 1, 5, 7, 8, 4, 6))
    else:
        w = tl.permute(w, (0, 2, 9, 3, 1, 5, 8, 4, 7, 6))
    return tl.reshape(w, (16 * TILES, STEP) if P == 1 else (P, 16 * TILES, STEP))


@triton.jit
def common(  # type: ignore[no-untyped-def]
    x_at, there, width, weight, scale, line, lines,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr, BLOCKS: tl.constexpr,
    WHOLE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Products [COLUMNS, ROWS] of the shared expert's rows `line`; zeros from row `lines` on.

    PARTS warps share the channels, as in `routed`.
    """
    if PARTS == 1:
        part, high = 0, (tl.arange(0, COLUMNS) >= COLUMNS // 2)[:, None]
        lane, line = tl.arange(0, 128)[None, :], line[:, None]
        acc = tl.zeros((COLUMNS, ROWS), tl.float32)
    else:
        part = tl.arange(0, PARTS)[:, None, None]
        high = (tl.arange(0, COLUMNS) >= COLUMNS // 2)[None, :, None]
        lane, line = part * 128 + tl.arange(0, 128)[None, None, :], line[None, :, None]
        acc = tl.zeros((PARTS, COLUMNS, ROWS), tl.float32)
    w_at = weight + line * width + lane
    s_at = scale + line // 128 * BLOCKS
    # The lower and the upper half of whole tiles have one scale each.
    low_at = scale + tl.min(line) // 128 * BLOCKS
    high_at = scale + tl.max(line) // 128 * BLOCKS
    for turn in range((BLOCKS + PARTS - 1) // PARTS):
        at = turn * PARTS * 128
        block = turn * PARTS + part
        xs = _rows(x_at, at, there, width, PARTS, 128, WHOLE, DOT)
        if WHOLE:
            w = tl.load(w_at + at)
            size = tl.where(
                high, narrow.e8m0(tl.load(high_at + block)), narrow.e8m0(tl.load(low_at + block))
            )
        else:
            w = tl.load(w_at + at, mask=(line < lines) & (at + lane < width), other=0)
            inside = (line < lines) & (block < BLOCKS)
            size = narrow.e8m0(tl.load(s_at + block, mask=inside, other=127))
        acc += tl.dot(narrow.e4m3(w, DOT), xs, input_precision="ieee") * size
    if PARTS > 1:
        acc = tl.sum(acc, 0)
    return acc


@triton.jit
def swiglu(both, limit, COLUMNS: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The clamped SwiGLU of COLUMNS gate rows over as many up rows."""
    gate, up = tl.split(tl.permute(tl.reshape(both, (2, COLUMNS, ROWS)), (1, 2, 0)))
    gate = tl.minimum(gate, limit)
    return gate / (1.0 + tl.exp(-gate)) * tl.minimum(tl.maximum(up, -limit), limit)


@triton.jit
def shared_hidden(  # type: ignore[no-untyped-def]
    x, shared, shared_scale, hidden, tile, m, d, inner, limit,
    SLOTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr,
    BLOCKS: tl.constexpr, WHOLE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Tile `tile` of COLUMNS hidden channels of the shared expert, into the last slot of rows."""
    row = tl.arange(0, ROWS)
    column = tile * COLUMNS + tl.arange(0, COLUMNS)
    both = tl.arange(0, 2 * COLUMNS)
    line = tile * COLUMNS + both % COLUMNS
    line = tl.where(line < inner, line + both // COLUMNS * inner, 2 * inner)
    acc = common(
        x + row * d, row < m, d, shared, shared_scale, line, 2 * inner,
        ROWS, 2 * COLUMNS, PARTS, BLOCKS, WHOLE, DOT,
    )  # fmt: skip
    ahead.let_next_begin()
    active = swiglu(acc, limit, COLUMNS, ROWS)
    h_at = hidden + (row * (SLOTS + 1) + SLOTS)[None, :] * inner + column[:, None]
    keep = (row < m)[None, :] & (column < inner)[:, None]
    tl.store(h_at, active.to(hidden.dtype.element_ty), mask=keep)


@triton.jit(do_not_specialize=["m"])
def _begin(  # type: ignore[no-untyped-def]
    x, shared, shared_scale, hidden, m, d, inner, limit,
    SLOTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr,
    BLOCKS: tl.constexpr, WHOLE: tl.constexpr, DOT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        ahead.wait()
    shared_hidden(
        x, shared, shared_scale, hidden, tl.program_id(0), m, d, inner, limit,
        SLOTS, ROWS, COLUMNS, PARTS, BLOCKS, WHOLE, DOT,
    )  # fmt: skip


@triton.jit(do_not_specialize=["m"])
def _gate_up(  # type: ignore[no-untyped-def]
    x, chosen, weights, codes, scales, shared, shared_scale, hidden,
    m, d, inner, limit, code_stride, scale_stride,
    SLOTS: tl.constexpr, ROUTES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    STEP: tl.constexpr, PARTS: tl.constexpr, TURNS: tl.constexpr, TILES: tl.constexpr,
    SHARED: tl.constexpr, BLOCKS: tl.constexpr, WHOLE: tl.constexpr, DOT: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    block, part = tl.program_id(0), tl.program_id(1)
    if EARLY:
        ahead.wait()
    if SHARED == 0:
        _routed_hidden(
            x, chosen, weights, codes, scales, hidden, block, part,
            m, d, inner, limit, code_stride, scale_stride,
            SLOTS, ROUTES, ROWS, COLUMNS, STEP, PARTS, TURNS, TILES, WHOLE, DOT,
        )  # fmt: skip
    elif part < SHARED:
        shared_hidden(
            x, shared, shared_scale, hidden, block * SHARED + part, m, d, inner, limit,
            SLOTS, ROWS, COLUMNS // SHARED, PARTS, BLOCKS, WHOLE, DOT,
        )  # fmt: skip
    else:
        _routed_hidden(
            x, chosen, weights, codes, scales, hidden, block, part - SHARED,
            m, d, inner, limit, code_stride, scale_stride,
            SLOTS, ROUTES, ROWS, COLUMNS, STEP, PARTS, TURNS, TILES, WHOLE, DOT,
        )  # fmt: skip


@triton.jit
def _routed_hidden(  # type: ignore[no-untyped-def]
    x, chosen, weights, codes, scales, hidden, block, route,
    m, d, inner, limit, code_stride, scale_stride,
    SLOTS: tl.constexpr, ROUTES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    STEP: tl.constexpr, PARTS: tl.constexpr, TURNS: tl.constexpr, TILES: tl.constexpr,
    WHOLE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Tile `block` of the expert of `route`, unless an earlier route does it.

    Rows are read only where they chose the expert: of several rows most go elsewhere, and reading
    them all would take as long as reading the weights.
    """
    if _met_before(chosen, route, m * SLOTS, ROUTES) == 0:
        row = tl.arange(0, ROWS)
        expert = tl.load(chosen + route).to(tl.int64)
        share = tl.zeros((ROWS,), tl.float32)
        here = row < 0
        for slot in tl.static_range(SLOTS):
            at = row * SLOTS + slot
            mine = tl.load(chosen + at, mask=row < m, other=-1) == expert
            share += tl.where(mine, tl.load(weights + at, mask=row < m, other=0.0), 0.0)
            here = here | mine
        tile = gate_and_up(block, inner, COLUMNS)
        acc = routed(
            x + row * d, here, d, codes + expert * code_stride, scales + expert * scale_stride,
            tile, inner // 8, TILES, ROWS, 2 * COLUMNS, STEP, PARTS, TURNS, WHOLE, False, DOT,
        )  # fmt: skip
        ahead.let_next_begin()
        active = swiglu(acc * narrow.E2M1_REPAIR, limit, COLUMNS, ROWS) * share[None, :]
        _share_out(active, chosen, expert, hidden, block, m, inner, SLOTS, ROWS, COLUMNS)


@triton.jit
def _share_out(  # type: ignore[no-untyped-def]
    active, chosen, expert, hidden, block, m, inner,
    SLOTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """`active` into its rows' first slots that chose `expert`, zeros into their others."""
    row = tl.arange(0, ROWS)
    column = block * COLUMNS + tl.arange(0, COLUMNS)
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
    STEP: tl.constexpr, PARTS: tl.constexpr, TURNS: tl.constexpr, TILES: tl.constexpr,
    SHARED: tl.constexpr, BLOCKS: tl.constexpr, WHOLE: tl.constexpr, DOT: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, ROWS)
    part = tl.program_id(1)
    if EARLY:
        ahead.wait()
    if part < SHARED:
        PART: tl.constexpr = COLUMNS // SHARED
        column = (tl.program_id(0) * SHARED + part) * PART + tl.arange(0, PART)
        at = row * (SLOTS + 1) + SLOTS
        acc = common(
            hidden + at * inner, row < m, inner, shared, shared_scale, column, d,
            ROWS, PART, PARTS, BLOCKS, WHOLE, DOT,
        )  # fmt: skip
        keep = (row < m)[None, :] & (column < d)[:, None]
        ahead.let_next_begin()
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
                tile, (d - 1) // 16, TILES, ROWS, COLUMNS, STEP, PARTS, TURNS, WHOLE, False, DOT,
            )  # fmt: skip
            ahead.let_next_begin()
            acc *= narrow.E2M1_REPAIR
            for slot in tl.static_range(SLOTS):
                mine = tl.load(chosen + row * SLOTS + slot, mask=row < m, other=-1) == expert
                value = tl.where((first == slot)[None, :], acc, 0.0)
                at = row * (SLOTS + 1) + slot
                keep = (mine & (row < m))[None, :] & (column < d)[:, None]
                tl.store(parts + at[None, :] * d + column[:, None], value, mask=keep)
