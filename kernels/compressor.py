"""Compressors inside kernels: what a step's rows leave in a ring, and the rows of ended windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import packed, packing
from kernels.launch import require, require_activation, require_contiguous
from kernels.packed import INDEX_GROUP, Packed
from kernels.pool import Pool
from kernels.rotary import angles
from kernels.rounding import e2m1_grouped, hadamard, require_index
from kernels.row import made, row_block

_INDEX = tl.constexpr(INDEX_GROUP)
POSITIONS = 16  # whose inputs are read at once when a window is pooled


class Port(NamedTuple):
    """A `Pool` as kernels see it; `first` is its first column in the projected inputs."""

    ape: Tensor
    norm: Tensor
    inputs: Tensor
    rows: Tensor
    first: int
    ratio: int
    width: int
    slots: int
    d: int
    capacity: int


class PackedPort(NamedTuple):
    """A `Port` whose rows are packed: `rows` are their codes."""

    ape: Tensor
    norm: Tensor
    inputs: Tensor
    rows: Tensor
    first: int
    ratio: int
    width: int
    slots: int
    d: int
    capacity: int
    scales: Tensor
    tail: Tensor  # for index keys, which have none, the codes again


class Shape(NamedTuple):
    """What a kernel is compiled for."""

    ratio: int
    span: int  # positions that a row is pooled from
    block: int  # channels of the tile of a row
    step: int  # positions of the tile of inputs
    scales: int = 0  # bytes of a packed row's scales; 0 stores plain rows


def ports(pools: Sequence[Pool], rows: int) -> tuple[Port | PackedPort, ...]:
    """`pools` for a launch, checked; their rings must hold a window and `rows` more positions."""
    require(len(pools) <= 2, f"{len(pools)} pools: key/value rows and index keys make two")
    found, first = list[Port | PackedPort](), 0
    for pool, keys in zip(pools, (False, True), strict=False):
        _check(pool, rows, keys=keys)
        found.append(_port(pool, first))
        first += 2 * pool.width
    return tuple(found)


def _port(pool: Pool, first: int) -> Port | PackedPort:
    sizes = (first, pool.ratio, pool.width, pool.inputs.shape[0], pool.d)
    if not isinstance(pool.rows, Packed):
        return Port(*pool[:3], pool.rows, *sizes, pool.rows.shape[0])
    codes, scales, tail = pool.rows
    tail = codes if tail is None else tail
    return PackedPort(*pool[:3], codes, *sizes, codes.shape[0], scales, tail)


def _check(pool: Pool, rows: int, *, keys: bool) -> None:
    if isinstance(pool.rows, Packed):
        fault = packed.fault(pool.rows, keys=keys)
        require(not fault, fault)
    flat = (pool.ape, pool.inputs, *packed.tensors(pool.rows))
    require(all(part.dim() == 2 for part in flat), "a pool's parts are flat")
    d = pool.d
    require(pool.width in (d, 2 * d), f"gates of {pool.width} channels do not make rows of {d}")
    require(pool.norm.shape == (d,), f"the norm's weight does not fit {d} channels")
    slots, channels = pool.inputs.shape
    require(channels == 2 * pool.width, f"a ring of {channels} channels: not {2 * pool.width}")
    require(slots >= pool.span + rows - 1, f"a ring of {slots} cannot take {rows} rows at once")
    require(pool.ape.dtype == pool.inputs.dtype == torch.float32, "ape and inputs: not float32")
    require_contiguous(ape=pool.ape, norm=pool.norm, inputs=pool.inputs)
    if not isinstance(pool.rows, Packed):
        require_activation("rows", pool.rows)
        require_contiguous(rows=pool.rows)


def shapes(pools: Sequence[Pool], pairs: int, step: int, *, rounds: bool) -> tuple[Shape, ...]:
    """Tiles of `pools` whose inputs are read `step` positions, a power of two, at once."""
    found = []
    for keys, pool in zip((False, True), pools, strict=False):
        d, given = pool.d, packed.operands(pool.rows)
        require(rounds or given.scales is None, "packed rows that nothing rounds")
        require(given.tail is None or given.tails == 2 * pairs, "a tail is not what is rotated")
        if rounds and keys:
            require_index(d)
        block = triton.next_power_of_2(d) if keys else row_block(d, pairs, rounds=rounds)
        tile = min(step, triton.next_power_of_2(pool.span))
        found.append(Shape(pool.ratio, pool.span, block, tile, given.bytes))
    return tuple(found)


@triton.jit
def take(y16, columns, port, row, at, chunk, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Copy a chunk of the inputs of `row`, which is at position `at`, to their slot of the ring."""
    channel = chunk * CHANNELS + tl.arange(0, CHANNELS)
    there = channel < 2 * port.width
    gate = there & (channel >= port.width)
    value = tl.load(y16 + row * columns + port.first + channel, mask=there, other=0.0)
    place = port.ape + (at % port.ratio) * port.width + channel - port.width
    value += tl.load(place, mask=gate, other=0.0)
    tl.store(port.inputs + (at % port.slots) * 2 * port.width + channel, value, mask=there)


@triton.jit
def complete(  # type: ignore[no-untyped-def]
    port, w, cos, sin, context, pairs, eps, y16, columns, start,
    SHAPE: tl.constexpr, KEYS: tl.constexpr, ROUNDS: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    """Store the row of window `w`, pooled from the ring.

    LONG: inputs of the positions from `start` are not in the ring but still rows of `y16`.
    """
    RATIO: tl.constexpr = SHAPE[0]
    SPAN: tl.constexpr = SHAPE[1]
    BLOCK: tl.constexpr = SHAPE[2]
    STEP: tl.constexpr = SHAPE[3]
    SCALES: tl.constexpr = SHAPE[4]
    channel = tl.arange(0, BLOCK)[None, :]
    lowest = -1e30  # as a gate: a weight of zero beside any real one, and no infinity
    best = tl.full((1, BLOCK), lowest, tl.float32)
    mass = tl.zeros((1, BLOCK), tl.float32)
    total = tl.zeros((1, BLOCK), tl.float32)
    for first in range(0, SPAN, STEP):
        slot = first + tl.arange(0, STEP)[:, None]
        at = (w + 1) * RATIO - SPAN + slot
        # The second half of the channels is what a window leaves to its own row.
        column = channel + tl.where(slot < SPAN - RATIO, 0, port.width - port.d)
        there = (slot < SPAN) & (at >= 0)
        real = there & (channel < port.d)
        place = port.inputs + (at % port.slots) * 2 * port.width
        if LONG:
            fresh = at >= start
            place = tl.where(fresh, y16 + (at - start) * columns + port.first, place)
        value = tl.load(place + column, mask=real, other=0.0)
        gate = tl.load(place + column + port.width, mask=real, other=0.0)
        if LONG:
            ape = port.ape + (at % RATIO) * port.width + column
            gate += tl.load(ape, mask=real & fresh, other=0.0)
        gate = tl.where(there, gate, lowest)
        peak = tl.maximum(best, tl.max(gate, 0)[None, :])
        shrink, share = tl.exp(best - peak), tl.exp(gate - peak)
        mass = mass * shrink + tl.sum(share, 0)[None, :]
        total = total * shrink + tl.sum(share * value, 0)[None, :]
        best = peak
    pooled = tl.where(channel < port.d, total / mass, 0.0)
    c, s = angles(cos, sin, w * RATIO, context, port.d, pairs, BLOCK // 2)
    row = made(pooled, port.norm, c, s, port.d, pairs, eps, tl.float32, ROUNDS and not KEYS, BLOCK)
    if ROUNDS and KEYS:
        row = e2m1_grouped(hadamard(row, 1.0 / tl.sqrt_rn(BLOCK * 1.0), 1, BLOCK), 1, BLOCK, _INDEX)
    if SCALES == 0:
        there = (channel < port.d) & (w < port.capacity)
        tl.store(port.rows + w * port.d + channel, row.to(port.rows.dtype.element_ty), mask=there)
    elif KEYS:
        packing.write_key(port.rows, port.scales, row, w, w < port.capacity, SCALES, BLOCK)
    else:
        packing.write_row(port.rows, port.scales, port.tail, row, w, w < port.capacity,
                          port.d - 2 * pairs, 2 * pairs, SCALES, BLOCK)  # fmt: skip
