"""Attention over one shared key/value row per position, with a sink in the denominator.

A step of few rows is split along its keys: every program multiplies one row's heads, or some of
them, by its share of the keys, and a second launch adds up the shares in order and turns the result
back. Which keys a program takes depends on the state's size alone and on how far back a key lies,
so a row's sums run in the same order whatever shares its step; programs without a visible key end
at once. A long step keeps a row's keys in one program.

Of the keys nearby, the one of age a lies a positions before the newest that the row sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import packed, packing
from kernels.ahead import let_next_begin, wait
from kernels.launch import (
    dot_type,
    output,
    require,
    require_activation,
    require_contiguous,
)
from kernels.packed import Packed, Rows


@dataclass(frozen=True, slots=True)
class Tile:
    """Launches of the sum over keys; `heads`, `keys` and `channels` are powers of two from 16."""

    heads: int  # of a program
    keys: int  # a turn
    splits: int  # at most; further keys are further turns of the same programs
    warps: int
    channels: int = 128  # of a program that adds up the splits
    early: bool = False  # both launches begin before the one before has ended


# A split for every block of the window and of 512 chosen rows: a second turn costs a whole latency,
# and more splits cost a wide step more than they save a narrow one.
STEP = Tile(heads=16, keys=32, splits=20, warps=4, channels=64, early=True)
LONG = Tile(heads=64, keys=32, splits=1, warps=8)
EXACT = Tile(heads=16, keys=16, splits=32, warps=16)  # float32: no tensor cores, long programs

_ADDED = 2048  # numbers that a warp adds up: 64 a thread, asked for at once
_FLOOR = tl.constexpr(-1e30)  # under every score, and finite: its difference from itself is zero


def attend(
    queries: Tensor,
    ring: Tensor,
    rows: Rows | None,
    indices: Tensor | None,
    sink: Tensor,
    cos: Tensor,
    sin: Tensor,
    position: Tensor,
    *,
    window: int,
    ratio: int,
    scale: float,
    out: Tensor | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """`queries` [m, h, d] over their windows and compressed rows -> [m, h, d], turned back.

    Row r is at `position[0] + r` (int64 [1], on the device), called t. Its keys are the last
    `window` positions up to t, where slot p % slots of `ring` [slots, d] holds position p and
    slots >= window + m - 1; and of `rows` [capacity, d] the first (t + 1) // ratio, or those that
    `indices` int32 [m, count] names, -1 after the last. Without `rows`, `ratio` means nothing.
    Queries, ring and rows, or the tail of packed ones, share a dtype, BF16 or float32; `sink`
    float32 [h]; `cos`, `sin` float32 [positions, pairs], of which row t turns the last 2 pairs
    channels back. Float32 sums, one cast. Packed rows give the bits of the plain ones that they
    stand for. Raises ValueError for operands that do not fit.
    """
    (m, _, _), slots = queries.shape, ring.shape[0]
    require(slots >= window + max(m, 1) - 1, f"{slots} slots cannot hold {m} windows of {window}")
    _check_far(queries, rows, indices, ratio)
    return _split(queries, ring, rows, indices, sink, cos, sin, position, window, ratio, scale, out,
                  tile, block=False)  # fmt: skip


def attend_block(
    queries: Tensor,
    ring: Tensor,
    block: Tensor,
    sink: Tensor,
    cos: Tensor,
    sin: Tensor,
    length: Tensor,
    *,
    scale: float,
    out: Tensor | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """`queries` [b, h, d] of a draft block, each over the context and the whole block.

    The block's slots stand at `length[0]` (int64 [1], on the device) and on; slot p % window of
    `ring` [window, d] holds the committed position p < length. Every slot sees all that the ring
    holds and all of `block` [b, d]. The rest is as in `attend`.
    """
    require(
        block.dim() == 2 and block.shape[0] == queries.shape[0], "the block does not fit its slots"
    )
    _check_far(queries, block, None, 1)
    return _split(queries, ring, block, None, sink, cos, sin, length, ring.shape[0], 1, scale, out,
                  tile, block=True)  # fmt: skip


def attend_long(
    queries: Tensor,
    kv: Tensor,
    rows: Rows | None,
    indices: Tensor | None,
    sink: Tensor,
    cos: Tensor,
    sin: Tensor,
    position: Tensor,
    *,
    window: int,
    ratio: int,
    scale: float,
    out: Tensor | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """`attend` for any number of rows, over the window's keys in order.

    Row r sees `kv` [window - 1 + m, d] from r to r + window - 1, so that its own is the last of
    them; what stands for positions before the first is not looked at.
    """
    m, heads, d = queries.shape
    require(kv.shape == (window - 1 + m, d), f"keys {tuple(kv.shape)} do not fit {m} rows")
    _check_far(queries, rows, indices, ratio)
    pairs = _check(queries, kv, sink, cos, sin, position)
    o = output(out, (m, heads, d), queries.dtype, queries, kv, *packed.tensors(rows), indices, sink,
               cos, sin, position)  # fmt: skip
    if o.numel() == 0:
        return o
    tile = tile or (EXACT if queries.dtype == torch.float32 else LONG)
    far = packed.operands(kv if rows is None else rows)
    _long[(m, triton.cdiv(heads, tile.heads))](
        queries, kv, *far, far.rows if indices is None else indices, sink, cos, sin, position, o,
        heads, pairs, _reach(rows, indices), max(ratio, 1), scale,
        WINDOW=window, D=d, BLOCK=triton.next_power_of_2(d), HEADS=tile.heads, KEYS=tile.keys,
        NEAR=triton.cdiv(window, tile.keys), INDEXED=indices is not None, DOT=dot_type(queries),
        SCALES=far.bytes, TAIL=far.tails, num_warps=tile.warps,
    )  # fmt: skip
    return o


def _reach(rows: Rows | None, indices: Tensor | None) -> int:
    """How many compressed rows a query may see at most."""
    if rows is None:
        return 0
    return packed.capacity(rows) if indices is None else indices.shape[1]


def _check(
    queries: Tensor, near: Tensor, sink: Tensor, cos: Tensor, sin: Tensor, position: Tensor
) -> int:
    """Number of rotated pairs of what every form takes."""
    require(queries.dim() == 3, f"queries {tuple(queries.shape)} are not [rows, heads, channels]")
    _, heads, d = queries.shape
    require_activation("queries", queries)
    require(near.dim() == 2 and near.shape[1] == d, f"keys {tuple(near.shape)} are not [.., {d}]")
    require(near.dtype == queries.dtype, f"keys are {near.dtype}, queries {queries.dtype}")
    require(sink.shape == (heads,), f"{tuple(sink.shape)} sinks do not fit {heads} heads")
    require(
        cos.shape == sin.shape and cos.dim() == 2 and 2 * cos.shape[1] <= d and d % 2 == 0,
        f"a table {tuple(cos.shape)} does not fit heads of {d} channels",
    )
    require(sink.dtype == cos.dtype == sin.dtype == torch.float32, "sink or table is not float32")
    require(position.shape == (1,) and position.dtype == torch.int64, "position is not int64 [1]")
    require_contiguous(queries=queries, keys=near, sink=sink, cos=cos, sin=sin)
    return cos.shape[1]


def _check_far(queries: Tensor, rows: Rows | None, indices: Tensor | None, ratio: int) -> None:
    require(rows is not None or indices is None, "indices of no rows")
    if rows is None:
        return
    require(ratio >= 1, f"a ratio of {ratio} is less than one")
    if isinstance(rows, Packed):
        fault = packed.fault(rows, keys=False)
        require(not fault, fault)
    last = rows.tail if isinstance(rows, Packed) else rows
    assert last is not None
    require(
        last.dim() == 2
        and packed.channels(rows) == queries.shape[-1]
        and last.dtype == queries.dtype,
        f"rows {last.dtype} {tuple(last.shape)} do not fit the queries",
    )
    require_contiguous(rows=last, indices=indices)
    if indices is not None:
        require(
            indices.dim() == 2
            and indices.shape[0] == queries.shape[0]
            and indices.dtype == torch.int32,
            f"indices {indices.dtype} {tuple(indices.shape)} are not int32 [rows, count]",
        )


def _split(
    queries: Tensor, ring: Tensor, rows: Rows | None, indices: Tensor | None, sink: Tensor,
    cos: Tensor, sin: Tensor, position: Tensor, window: int, ratio: int, scale: float,
    out: Tensor | None, tile: Tile | None, *, block: bool,
) -> Tensor:  # fmt: skip
    """Both launches of a step or a block."""
    m, heads, d = queries.shape
    pairs = _check(queries, ring, sink, cos, sin, position)
    o = output(out, (m, heads, d), queries.dtype, queries, ring, *packed.tensors(rows), indices,
               sink, cos, sin, position)  # fmt: skip
    if o.numel() == 0:
        return o
    tile = tile or (EXACT if queries.dtype == torch.float32 else STEP)
    near, reach = triton.cdiv(window, tile.keys), _reach(rows, indices)
    blocks = near + triton.cdiv(reach, tile.keys)
    turns = triton.cdiv(blocks, tile.splits)
    splits = triton.cdiv(blocks, turns)
    parts = queries.new_empty((m, heads, splits, d), dtype=torch.float32)
    sizes = queries.new_empty((2, m, heads, splits), dtype=torch.float32)
    far = packed.operands(ring if rows is None else rows)
    block_size = triton.next_power_of_2(d)
    shared: dict[str, Any] = {
        "KEYS": tile.keys, "NEAR": near, "SPLITS": splits, "TURNS": turns, "TOGETHER": block,
        "EARLY": tile.early, "launch_pdl": tile.early,
    }  # fmt: skip
    _share[(splits, triton.cdiv(heads, tile.heads), m)](
        queries, ring, *far, far.rows if indices is None else indices, position, parts, *sizes,
        heads, ring.shape[0], reach, max(ratio, 1), scale,
        WINDOW=window, D=d, CHUNKS=min(tile.warps, max(block_size // 16, 1)), BLOCK=block_size,
        HEADS=tile.heads, INDEXED=indices is not None, DOT=dot_type(queries), SCALES=far.bytes,
        TAIL=far.tails, **shared, num_warps=tile.warps,
    )  # fmt: skip
    channels, room = min(tile.channels, block_size), triton.next_power_of_2(splits)
    _combine[(triton.cdiv(d, channels), heads, m)](
        parts, *sizes, sink, cos, sin, position, o, heads, pairs, reach, max(ratio, 1),
        D=d, CHANNELS=channels, ROOM=room, **shared,
        num_warps=min(max(room * channels // _ADDED, 1), 8),
    )  # fmt: skip
    return o


@triton.jit
def _alive(  # type: ignore[no-untyped-def]
    block, newest, visible, KEYS: tl.constexpr, NEAR: tl.constexpr
):
    """Whether a block of keys has one that a query sees; the first NEAR are the window's."""
    return tl.where(block < NEAR, block * KEYS <= newest, (block - NEAR) * KEYS < visible)


@triton.jit
def _horizon(  # type: ignore[no-untyped-def]
    position, row, reach, ratio, TOGETHER: tl.constexpr
):
    """Newest position that a row sees nearby, and how many compressed rows."""
    start = tl.load(position).to(tl.int32)
    if TOGETHER:
        newest = start - 1
        visible = reach
    else:
        newest = start + row
        visible = tl.minimum((newest + 1) // ratio, reach)
    return newest, visible


@triton.jit
def _listed(  # type: ignore[no-untyped-def]
    places, lane, count, INDEXED: tl.constexpr
):
    """Numbers of the compressed rows number `lane` of a query's list, -1 for none."""
    number = tl.where((lane >= 0) & (lane < count), lane, -1)
    if INDEXED:
        number = tl.load(places + lane, mask=number >= 0, other=-1)
    return number


@triton.jit
def _weighed(score, seen, largest, total):  # type: ignore[no-untyped-def]
    """A running softmax with more scores [heads, keys]: their weights, and how the rest shrinks."""
    score = tl.where(seen[None, :], score, float("-inf"))
    top = tl.maximum(largest, tl.max(score, 1))
    mass = tl.exp(score - top[:, None])
    shrink = tl.exp(largest - top)
    return mass, shrink, top, total * shrink + tl.sum(mass, 1)


@triton.jit
def _angles(  # type: ignore[no-untyped-def]
    cos, sin, t, pairs, first, D: tl.constexpr, CHANNELS: tl.constexpr
):
    """Cosines and sines [1, CHANNELS / 2] by which channels from `first` on are turned."""
    pair = first // 2 + tl.arange(0, CHANNELS // 2) - (D // 2 - pairs)
    turned = (pair >= 0) & (pair < pairs)
    c = tl.load(cos + t * pairs + pair, mask=turned, other=1.0)
    s = tl.load(sin + t * pairs + pair, mask=turned, other=0.0)
    return c[None, :], s[None, :]


@triton.jit
def _turned_back(x, c, s):  # type: ignore[no-untyped-def]
    """Lines [lines, channels] turned by minus their angles."""
    LINES: tl.constexpr = x.shape[0]
    CHANNELS: tl.constexpr = x.shape[1]
    even, odd = tl.split(tl.reshape(x, (LINES, CHANNELS // 2, 2)))
    return tl.reshape(tl.join(even * c + odd * s, odd * c - even * s), (LINES, CHANNELS))


# A product over 512 channels is a chain of 32 that wait for each other. Cut into chunks, one a
# warp, the chains are short and each warp reads the keys of its own channels alone.
@triton.jit
def _share(  # type: ignore[no-untyped-def]
    queries, ring, rows, scales, tail, indices, position, parts, largests, totals,
    heads, slots, reach, ratio, scale,
    WINDOW: tl.constexpr, D: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
    HEADS: tl.constexpr, KEYS: tl.constexpr, NEAR: tl.constexpr, SPLITS: tl.constexpr,
    TURNS: tl.constexpr, INDEXED: tl.constexpr, TOGETHER: tl.constexpr, DOT: tl.constexpr,
    SCALES: tl.constexpr, TAIL: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Sums over the keys of one split: blocks number split, split + SPLITS and so on."""
    split = tl.program_id(0)
    row = tl.program_id(2).to(tl.int64)
    if EARLY:
        wait()
    # Only now: the next launch reads the position before it waits for this one.
    let_next_begin()
    # A list is read while the position is: neither waits for the other.
    lane = (split - NEAR) * KEYS + tl.arange(0, KEYS)
    number = _listed(indices + row * reach, lane, reach, INDEXED)
    newest, visible = _horizon(position, tl.program_id(2), reach, ratio, TOGETHER)
    alive = _alive(split, newest, visible, KEYS, NEAR)
    for turn in tl.static_range(1, TURNS):
        alive = alive | _alive(split + turn * SPLITS, newest, visible, KEYS, NEAR)
    if alive:
        head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
        chunk = tl.arange(0, CHUNKS)[:, None, None] * (BLOCK // CHUNKS)
        channel = chunk + tl.arange(0, BLOCK // CHUNKS)[None, None, :]
        q_at = queries + (row * heads + head)[None, :, None] * D + channel
        there = (head < heads)[None, :, None] & (channel < D)
        q = tl.load(q_at, mask=there, other=0.0).to(DOT)
        largest = tl.full((HEADS,), _FLOOR, tl.float32)
        total = tl.zeros((HEADS,), tl.float32)
        acc = tl.zeros((CHUNKS, HEADS, BLOCK // CHUNKS), tl.float32)
        for turn in tl.static_range(TURNS):
            block = split + turn * SPLITS
            if _alive(block, newest, visible, KEYS, NEAR):
                if turn > 0:
                    lane = (block - NEAR) * KEYS + tl.arange(0, KEYS)
                    number = _listed(indices + row * reach, lane, reach, INDEXED)
                age = block * KEYS + tl.arange(0, KEYS)
                near = (age < WINDOW) & (age <= newest)
                far = (number >= 0) & (lane < visible)
                place = tl.where(near, newest - age, 0) % slots
                if SCALES == 0:
                    at = tl.where(block < NEAR, ring + place.to(tl.int64) * D,
                                  rows + tl.where(far, number, 0).to(tl.int64) * D)  # fmt: skip
                else:
                    at = ring + place.to(tl.int64) * D
                seen = tl.where(block < NEAR, near, far)
                k_there = seen[None, :, None] & (channel < D)
                if SCALES == 0:  # noqa: SIM114 - a compile-time decision before one of the device
                    k = tl.load(at[None, :, None] + channel, mask=k_there, other=0.0).to(DOT)
                elif block < NEAR:
                    k = tl.load(at[None, :, None] + channel, mask=k_there, other=0.0).to(DOT)
                else:
                    k = packing.read_chunks(rows, scales, tail, number, far, D, TAIL, SCALES,
                                            CHUNKS, BLOCK // CHUNKS, DOT)  # fmt: skip
                # The operand that has to be turned is the smaller one.
                dots = tl.dot(k, tl.trans(q, 0, 2, 1), input_precision="ieee")
                score = tl.trans(tl.sum(dots, 0)) * scale
                mass, shrink, largest, total = _weighed(score, seen, largest, total)
                weight = tl.broadcast_to(mass.to(DOT)[None, :, :], (CHUNKS, HEADS, KEYS))
                acc = tl.dot(weight, k, acc * shrink[None, :, None], input_precision="ieee")
        line = (row * heads + head) * SPLITS + split
        tl.store(parts + line[None, :, None] * D + channel, acc, mask=there)
        tl.store(largests + line, largest, mask=head < heads)
        tl.store(totals + line, total, mask=head < heads)


@triton.jit
def _combine(  # type: ignore[no-untyped-def]
    parts, largests, totals, sink, cos, sin, position, o, heads, pairs, reach, ratio,
    D: tl.constexpr, CHANNELS: tl.constexpr, KEYS: tl.constexpr, NEAR: tl.constexpr,
    SPLITS: tl.constexpr, TURNS: tl.constexpr, ROOM: tl.constexpr, TOGETHER: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Channels of one head of one row: its splits' sums, the sink, and the rotation back."""
    first = tl.program_id(0) * CHANNELS
    head = tl.program_id(1)
    row = tl.program_id(2).to(tl.int64)
    newest, visible = _horizon(position, tl.program_id(2), reach, ratio, TOGETHER)
    extra = tl.load(sink + head)
    c, s = _angles(cos, sin, tl.load(position) + row, pairs, first, D, CHANNELS)
    split = tl.arange(0, ROOM)
    # What a split without keys has written is nothing.
    alive = _alive(split, newest, visible, KEYS, NEAR)
    for turn in tl.static_range(1, TURNS):
        alive = alive | _alive(split + turn * SPLITS, newest, visible, KEYS, NEAR)
    alive = alive & (split < SPLITS)
    line = (row * heads + head) * SPLITS + split
    channel = first + tl.arange(0, CHANNELS)
    if EARLY:
        wait()
    part_at = parts + line[:, None] * D + channel[None, :]
    part = tl.load(part_at, mask=alive[:, None] & (channel < D)[None, :], other=0.0)
    largest = tl.load(largests + line, mask=alive, other=_FLOOR)
    total = tl.load(totals + line, mask=alive, other=0.0)
    top = tl.maximum(tl.max(largest, 0), extra)
    share = tl.exp(largest - top)
    mass = tl.sum(share * total, 0) + tl.exp(extra - top)
    mixed = tl.sum(share[:, None] * part, 0) / mass
    turned = _turned_back(mixed[None, :], c, s)
    o_at = o + (row * heads + head) * D + channel[None, :]
    let_next_begin()
    tl.store(o_at, turned.to(o.dtype.element_ty), mask=(channel < D)[None, :])


@triton.jit
def _long(  # type: ignore[no-untyped-def]
    queries, kv, rows, scales, tail, indices, sink, cos, sin, position, o,
    heads, pairs, reach, ratio, scale,
    WINDOW: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr,
    KEYS: tl.constexpr, NEAR: tl.constexpr, INDEXED: tl.constexpr, DOT: tl.constexpr,
    SCALES: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """All keys of some heads of one row."""
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * HEADS
    newest = tl.load(position).to(tl.int32) + tl.program_id(0)
    visible = tl.minimum((newest + 1) // ratio, reach)
    head = first + tl.arange(0, HEADS)
    channel = tl.arange(0, BLOCK)
    line = (row * heads + head)[:, None] * D + channel[None, :]
    there = (head < heads)[:, None] & (channel < D)[None, :]
    q = tl.load(queries + line, mask=there, other=0.0).to(DOT)
    largest = tl.full((HEADS,), _FLOOR, tl.float32)
    total = tl.zeros((HEADS,), tl.float32)
    acc = tl.zeros((HEADS, BLOCK), tl.float32)
    block = 0
    stop = NEAR + tl.cdiv(visible, KEYS)
    while block < stop:
        if _alive(block, newest, visible, KEYS, NEAR):
            age = block * KEYS + tl.arange(0, KEYS)
            near = (age < WINDOW) & (age <= newest)
            place = (row + WINDOW - 1 - tl.where(near, age, 0)) * D
            lane = age - NEAR * KEYS
            number = _listed(indices + row * reach, lane, visible, INDEXED)
            far = number >= 0
            if SCALES == 0:
                far_at = rows + tl.where(far, number, 0).to(tl.int64) * D
                at = tl.where(block < NEAR, kv + place, far_at)
            else:
                at = kv + place
            seen = tl.where(block < NEAR, near, far)
            k_there = seen[:, None] & (channel < D)[None, :]
            if SCALES == 0:  # noqa: SIM114 - a compile-time decision before one of the device
                k = tl.load(at[:, None] + channel[None, :], mask=k_there, other=0.0).to(DOT)
            elif block < NEAR:
                k = tl.load(at[:, None] + channel[None, :], mask=k_there, other=0.0).to(DOT)
            else:
                k = packing.read_rows(rows, scales, tail, number, far, D, TAIL, SCALES, BLOCK, DOT)
            score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            mass, shrink, largest, total = _weighed(score, seen, largest, total)
            acc = tl.dot(mass.to(DOT), k, acc * shrink[:, None], input_precision="ieee")
        block += 1
    extra = tl.load(sink + head, mask=head < heads, other=0.0)
    top = tl.maximum(largest, extra)
    shrink = tl.exp(largest - top)
    mixed = acc * (shrink / (total * shrink + tl.exp(extra - top)))[:, None]
    c, s = _angles(cos, sin, newest.to(tl.int64), pairs, 0, D, BLOCK)
    tl.store(o + line, _turned_back(mixed, c, s).to(o.dtype.element_ty), mask=there)
