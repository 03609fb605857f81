"""Mixture of MXFP4 experts for a decode or verify step of up to eight rows.

One program multiplies all rows of the step by one tile of one expert's matrix, and keeps the
products of the rows that chose it: the tensor core's tile is eight rows wide whatever happens, so a
second row on an expert costs nothing, nothing is gathered or sorted, and a row's bits do not depend
on its company. Of the programs that meet the same expert the first does the work, the others end.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import mxfp4, narrow
from kernels.launch import (
    DECODE_ROWS,
    dot_type,
    output,
    require,
    require_activation,
    require_contiguous,
)


@dataclass(frozen=True, slots=True)
class Tile:
    """Launch of one of the two products; all powers of two."""

    columns: int  # outputs of a program; in `gate_up` as many of the gate and of the up matrix
    step: int  # channels a turn, 32 or more
    warps: int
    stages: int


GATE_UP = Tile(columns=32, step=128, warps=2, stages=5)
DOWN = Tile(columns=64, step=128, warps=4, stages=5)


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
) -> Tensor:
    """Weighted hidden rows [m, t, i] of the `chosen` experts, of `x.dtype`.

    `x` [m, d] BF16 or float32, m <= 8; `chosen` int [m, t]; `weights` float32 [m, t]; `w13` packed
    MXFP4 [e, 2 i, d / 2], gate rows first; `s13` E8M0 [e, 2 i, d / 32]. Each hidden value is
    silu(min(gate, limit)) * clamp(up, -limit, limit) * weight in float32. A repeated expert's
    weights meet in its first slot; its other slots are zero. Raises ValueError for operands that
    do not fit.
    """
    (m, d), inner = x.shape, w13.shape[1] // 2
    slots = _check(x, chosen, d)
    require_contiguous(x=x)
    require(weights.shape == chosen.shape, f"weights {tuple(weights.shape)} do not fit the choice")
    require(weights.dtype == torch.float32, f"weights are {weights.dtype}, not float32")
    require_contiguous(weights=weights)
    mxfp4.check("w13", w13, s13, 2 * inner, d)
    hidden = output(out, (m, slots, inner), x.dtype, x, chosen, weights, w13, s13)
    if hidden.numel():
        _gate_up[(triton.cdiv(inner, tile.columns), m * slots)](
            x, chosen, weights, w13.view(torch.uint8), s13.view(torch.uint8), hidden,
            m, d, inner, limit,
            SLOTS=slots, ROUTES=_routes(slots), ROWS=DECODE_ROWS, COLUMNS=tile.columns,
            STEP=tile.step, TURNS=triton.cdiv(d, tile.step), WHOLE=_whole(inner, d, tile),
            DOT=dot_type(x), num_warps=tile.warps, num_stages=tile.stages,
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
) -> Tensor:
    """Float32 parts [m, t, d] of the output, zero in a repeated expert's later slots.

    `hidden` [m, t, i] contiguous, BF16 or float32; `w2` packed MXFP4 [e, d, i / 2]; `s2` E8M0
    [e, d, i / 32]. Raises ValueError for operands that do not fit.
    """
    (m, slots, inner), d = hidden.shape, w2.shape[1]
    _check(hidden, chosen, inner)
    require(chosen.shape == (m, slots), f"hidden {tuple(hidden.shape)} does not fit the choice")
    require_contiguous(hidden=hidden)
    mxfp4.check("w2", w2, s2, d, inner)
    parts = output(out, (m, slots, d), torch.float32, hidden, chosen, w2, s2)
    if parts.numel():
        _down[(triton.cdiv(d, tile.columns), m * slots)](
            hidden, chosen, w2.view(torch.uint8), s2.view(torch.uint8), parts, m, d, inner,
            SLOTS=slots, ROUTES=_routes(slots), ROWS=DECODE_ROWS, COLUMNS=tile.columns,
            STEP=tile.step, TURNS=triton.cdiv(inner, tile.step), WHOLE=_whole(d, inner, tile),
            DOT=dot_type(hidden), num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return parts


def total(
    parts: Tensor, shared: Tensor | None, dtype: torch.dtype, *, out: Tensor | None = None
) -> Tensor:
    """Output [m, d] of `dtype`: `parts` [m, t, d] in the order of t, then `shared` [m, d]."""
    m, slots, d = parts.shape
    require(parts.dtype == torch.float32, f"parts are {parts.dtype}, not float32")
    require(shared is None or shared.shape == (m, d), "the shared expert's rows do not fit")
    require_contiguous(parts=parts, shared=shared)
    y = output(out, (m, d), dtype, parts, shared)
    if y.numel():
        block = 256
        _total[(triton.cdiv(d, block), m)](
            parts, parts if shared is None else shared, y, d,
            SLOTS=slots, SHARED=shared is not None, BLOCK=block,
        )  # fmt: skip
    return y


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


def _whole(outputs: int, channels: int, tile: Tile) -> bool:
    return outputs % tile.columns == 0 and channels % tile.step == 0


@triton.jit
def _met_before(chosen, route, routes, ROUTES: tl.constexpr):  # type: ignore[no-untyped-def]
    """How many earlier routes of the step chose the expert of `route`."""
    at = tl.arange(0, ROUTES)
    others = tl.load(chosen + at, mask=at < routes, other=-1)
    return tl.sum(((others == tl.load(chosen + route)) & (at < route)).to(tl.int32), 0)


@triton.jit
def _codes(  # type: ignore[no-untyped-def]
    code_at, scale_at, at, there, channels, COLUMNS: tl.constexpr, STEP: tl.constexpr,
    WHOLE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Even and odd channels at .. at + STEP of the rows at `code_at`, times 2 ** -32."""
    if WHOLE:
        codes = tl.load(code_at + at // 2)
        exponents = tl.load(scale_at + at // 32)
    else:
        byte = at // 2 + tl.arange(0, STEP // 2)
        group = at // 32 + tl.arange(0, STEP // 32)
        inside = there[:, None] & (byte < channels // 2)[None, :]
        codes = tl.load(code_at + at // 2, mask=inside, other=0)
        inside = there[:, None] & (group < channels // 32)[None, :]
        exponents = tl.load(scale_at + at // 32, mask=inside, other=127)
    each = tl.broadcast_to(exponents[:, :, None], (COLUMNS, STEP // 32, 16))
    return narrow.e2m1(codes, tl.reshape(each, (COLUMNS, STEP // 2)), DOT)


@triton.jit
def _halves(x_at, at, there, width, ROWS: tl.constexpr, STEP: tl.constexpr, DOT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Even and odd channels at .. at + STEP of the rows at `x_at`, as right operands."""
    lane = at + tl.arange(0, STEP)
    xs = tl.load(
        x_at[:, None] + lane[None, :], mask=there[:, None] & (lane < width)[None, :], other=0.0
    )
    even, odd = tl.split(tl.reshape(xs.to(DOT), (ROWS, STEP // 2, 2)))
    return tl.trans(even), tl.trans(odd)


@triton.jit(do_not_specialize=["m"])
def _gate_up(  # type: ignore[no-untyped-def]
    x, chosen, weights, w13, s13, hidden, m, d, inner, limit,
    SLOTS: tl.constexpr, ROUTES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    STEP: tl.constexpr, TURNS: tl.constexpr, WHOLE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    route = tl.program_id(1)
    if _met_before(chosen, route, m * SLOTS, ROUTES) > 0:
        return
    expert = tl.load(chosen + route).to(tl.int64)
    row = tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    code = column[:, None] * (d // 2) + tl.arange(0, STEP // 2)[None, :]
    group = column[:, None] * (d // 32) + tl.arange(0, STEP // 32)[None, :]
    gate_at, gate_scale = w13 + expert * inner * d + code, s13 + expert * inner * (d // 16) + group
    up_at, up_scale = gate_at + inner * (d // 2), gate_scale + inner * (d // 32)
    there = column < inner
    gate = tl.zeros((COLUMNS, ROWS), tl.float32)
    up = tl.zeros((COLUMNS, ROWS), tl.float32)
    for turn in range(TURNS):
        at = turn * STEP
        even, odd = _halves(x + row * d, at, row < m, d, ROWS, STEP, DOT)
        low, high = _codes(gate_at, gate_scale, at, there, d, COLUMNS, STEP, WHOLE, DOT)
        gate = tl.dot(low, even, gate, input_precision="ieee")
        gate = tl.dot(high, odd, gate, input_precision="ieee")
        low, high = _codes(up_at, up_scale, at, there, d, COLUMNS, STEP, WHOLE, DOT)
        up = tl.dot(low, even, up, input_precision="ieee")
        up = tl.dot(high, odd, up, input_precision="ieee")
    gate = tl.minimum(gate * narrow.E2M1_REPAIR, limit)
    up = tl.minimum(tl.maximum(up * narrow.E2M1_REPAIR, -limit), limit)
    active = gate / (1.0 + tl.exp(-gate)) * up
    share = tl.zeros((ROWS,), tl.float32)
    for slot in tl.static_range(SLOTS):
        at = row * SLOTS + slot
        mine = tl.load(chosen + at, mask=row < m, other=-1) == expert
        share += tl.where(mine, tl.load(weights + at, mask=row < m, other=0.0), 0.0)
    active *= share[None, :]
    open_ = row < m
    for slot in tl.static_range(SLOTS):
        at = row * SLOTS + slot
        mine = (tl.load(chosen + at, mask=row < m, other=-1) == expert) & (row < m)
        value = tl.where((mine & open_)[None, :], active, 0.0)
        h_at = hidden + at[None, :] * inner + column[:, None]
        keep = mine[None, :] & (column < inner)[:, None]
        tl.store(h_at, value.to(hidden.dtype.element_ty), mask=keep)
        open_ = open_ & (mine == 0)


@triton.jit(do_not_specialize=["m"])
def _down(  # type: ignore[no-untyped-def]
    hidden, chosen, w2, s2, parts, m, d, inner,
    SLOTS: tl.constexpr, ROUTES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    STEP: tl.constexpr, TURNS: tl.constexpr, WHOLE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    route = tl.program_id(1)
    if _met_before(chosen, route, m * SLOTS, ROUTES) > 0:
        return
    expert = tl.load(chosen + route).to(tl.int64)
    row = tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    code = column[:, None] * (inner // 2) + tl.arange(0, STEP // 2)[None, :]
    group = column[:, None] * (inner // 32) + tl.arange(0, STEP // 32)[None, :]
    code_at = w2 + expert * d * (inner // 2) + code
    scale_at = s2 + expert * d * (inner // 32) + group
    first = tl.full((ROWS,), SLOTS, tl.int32)
    for back in tl.static_range(SLOTS):
        slot = SLOTS - 1 - back
        mine = tl.load(chosen + row * SLOTS + slot, mask=row < m, other=-1) == expert
        first = tl.where(mine, slot, first)
    x_at = hidden + (row * SLOTS + first) * inner
    acc = tl.zeros((COLUMNS, ROWS), tl.float32)
    for turn in range(TURNS):
        at = turn * STEP
        even, odd = _halves(x_at, at, (first < SLOTS) & (row < m), inner, ROWS, STEP, DOT)
        low, high = _codes(
            code_at, scale_at, at, column < d, inner, COLUMNS, STEP, WHOLE, DOT
        )  # fmt: skip
        acc = tl.dot(low, even, acc, input_precision="ieee")
        acc = tl.dot(high, odd, acc, input_precision="ieee")
    acc *= narrow.E2M1_REPAIR
    for slot in tl.static_range(SLOTS):
        at = row * SLOTS + slot
        mine = (tl.load(chosen + at, mask=row < m, other=-1) == expert) & (row < m)
        value = tl.where((first == slot)[None, :], acc, 0.0)
        keep = mine[None, :] & (column < d)[:, None]
        tl.store(parts + at[None, :] * d + column[:, None], value, mask=keep)


@triton.jit
def _total(  # type: ignore[no-untyped-def]
    parts, shared, y, d, SLOTS: tl.constexpr, SHARED: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for slot in tl.static_range(SLOTS):
        acc += tl.load(parts + (row * SLOTS + slot) * d + at, mask=at < d, other=0.0)
    if SHARED:
        acc += tl.load(shared + row * d + at, mask=at < d, other=0.0).to(tl.float32)
    tl.store(y + row * d + at, acc.to(y.dtype.element_ty), mask=at < d)
