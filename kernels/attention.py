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

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import (
    dot_type,
    output,
    require,
    require_activation,
    require_contiguous,
)


@dataclass(frozen=True, slots=True)
class Tile:
    """Launch of the sum over keys; `heads` and `keys` are powers of two from 16."""

    heads: int  # of a program
    keys: int  # a turn
    splits: int  # at most; further keys are further turns of the same programs
    warps: int


# Every split writes and reads a float32 row a head, so that a wide step pays for many of them.
STEP = Tile(heads=16, keys=32, splits=16, warps=4)
LONG = Tile(heads=64, keys=32, splits=1, warps=8)
EXACT = Tile(heads=16, keys=16, splits=32, warps=4)  # float32: no tensor cores, long programs

_FLOOR = tl.constexpr(-1e30)  # under every score, and finite: its difference from itself is zero


def attend(
    queries: Tensor,
    ring: Tensor,
    rows: Tensor | None,
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
    Queries, ring and rows share a dtype, BF16 or float32; `sink` float32 [h]; `cos`, `sin` float32
    [positions, pairs], of which row t turns the last 2 pairs channels back. Float32 sums, one cast.
    Raises ValueError for operands that do not fit.
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
    rows: Tensor | None,
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
    o = output(out, (m, heads, d), queries.dtype, queries, kv, rows, indices, sink, cos, sin,
               position)  # fmt: skip
    if o.numel() == 0:
        return o
    tile = tile or (EXACT if queries.dtype == torch.float32 else LONG)
    far = kv if rows is None else rows
    _long[(m, triton.cdiv(heads, tile.heads))](
        queries, kv, far, far if indices is None else indices, sink, cos, sin, position, o,
        heads, pairs, _reach(rows, indices), max(ratio, 1), scale,
        WINDOW=window, D=d, BLOCK=triton.next_power_of_2(d), HEADS=tile.heads, KEYS=tile.keys,
        NEAR=triton.cdiv(window, tile.keys), INDEXED=indices is not None, DOT=dot_type(queries),
        num_warps=tile.warps,
    )  # fmt: skip
    return o


def _reach(rows: Tensor | None, indices: Tensor | None) -> int:
    """How many compressed rows a query may see at most."""
    if rows is None:
        return 0
    return rows.shape[0] if indices is None else indices.shape[1]


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


def _check_far(queries: Tensor, rows: Tensor | None, indices: Tensor | None, ratio: int) -> None:
    require(rows is not None or indices is None, "indices of no rows")
    if rows is None:
        return
    require(ratio >= 1, f"a ratio of {ratio} is less than one")
    require(
        rows.dim() == 2 and rows.shape[1] == queries.shape[-1] and rows.dtype == queries.dtype,
        f"rows {rows.dtype} {tuple(rows.shape)} do not fit the queries",
    )
    require_contiguous(rows=rows, indices=indices)
    if indices is not None:
        require(
            indices.dim() == 2
            and indices.shape[0] == queries.shape[0]
            and indices.dtype == torch.int32,
            f"indices {indices.dtype} {tuple(indices.shape)} are not int32 [rows, count]",
        )


def _split(
    queries: Tensor, ring: Tensor, rows: Tensor | None, indices: Tensor | None, sink: Tensor,
    cos: Tensor, sin: Tensor, position: Tensor, window: int, ratio: int, scale: float,
    out: Tensor | None, tile: Tile | None, *, block: bool,
) -> Tensor:  # fmt: skip
    """Both launches of a step or a block."""
    m, heads, d = queries.shape
    pairs = _check(queries, ring, sink, cos, sin, position)
    o = output(out, (m, heads, d), queries.dtype, queries, ring, rows, indices, sink, cos, sin,
               position)  # fmt: skip
    if o.numel() == 0:
        return o
    tile = tile or (EXACT if queries.dtype == torch.float32 else STEP)
    near, reach = triton.cdiv(window, tile.keys), _reach(rows, indices)
    blocks = near + triton.cdiv(reach, tile.keys)
    turns = triton.cdiv(blocks, tile.splits)
    splits = triton.cdiv(blocks, turns)
    parts = queries.new_empty((m, splits, heads, d), dtype=torch.float32)
    sizes = queries.new_empty((m, splits, heads, 2), dtype=torch.float32)
    far = ring if rows is None else rows
    channels = triton.next_power_of_2(d)
    _share[(splits, triton.cdiv(heads, tile.heads), m)](
        queries, ring, far, far if indices is None else indices, position, parts, sizes,
        heads, ring.shape[0], reach, max(ratio, 1), scale,
        WINDOW=window, D=d, BLOCK=channels, HEADS=tile.heads, KEYS=tile.keys, NEAR=near,
        SPLITS=splits, TURNS=turns, INDEXED=indices is not None, TOGETHER=block,
        DOT=dot_type(queries), num_warps=tile.warps,
    )  # fmt: skip
    _combine[(heads, m)](
        parts, sizes, sink, cos, sin, position, o, heads, pairs,
        D=d, BLOCK=channels, SPLITS=splits, ROOM=triton.next_power_of_2(splits), STEP=8,
        num_warps=min(max(channels // 128, 1), 4),
    )  # fmt: skip
    return o


@triton.jit
def _alive(  # type: ignore[no-untyped-def]
    block, newest, visible, KEYS: tl.constexpr, NEAR: tl.constexpr
):
    """Whether a block of keys has one that a query sees; the first NEAR are the window's."""
    return tl.where(block < NEAR, block * KEYS <= newest, (block - NEAR) * KEYS < visible)


@triton.jit
def _far(  # type: ignore[no-untyped-def]
    rows, indices, row, lane, reach, visible, D: tl.constexpr, INDEXED: tl.constexpr
):
    """Addresses of the compressed rows number `lane` of a query, and which of them it sees."""
    seen = (lane >= 0) & (lane < visible)
    number = lane
    if INDEXED:
        number = tl.load(indices + row * reach + lane, mask=seen, other=-1)
        seen = number >= 0
    return rows + tl.where(seen, number, 0).to(tl.int64) * D, seen


@triton.jit
def _queries(  # type: ignore[no-untyped-def]
    queries, row, first, heads, D: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr
):
    """Some heads of a row, zero past the last head and channel."""
    head = first + tl.arange(0, HEADS)
    channel = tl.arange(0, BLOCK)
    at = queries + (row * heads + head)[:, None] * D + channel[None, :]
    return tl.load(at, mask=(head < heads)[:, None] & (channel < D)[None, :], other=0.0)


@triton.jit
def _take(  # type: ignore[no-untyped-def]
    q, at, seen, acc, largest, total, scale, D: tl.constexpr, BLOCK: tl.constexpr, DOT: tl.constexpr
):
    """Add the keys `at` some addresses to a running softmax."""
    channel = tl.arange(0, BLOCK)
    there = seen[:, None] & (channel < D)[None, :]
    k = tl.load(at[:, None] + channel[None, :], mask=there, other=0.0).to(DOT)
    score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    score = tl.where(seen[None, :], score, float("-inf"))
    top = tl.maximum(largest, tl.max(score, 1))
    mass = tl.exp(score - top[:, None])
    shrink = tl.exp(largest - top)
    total = total * shrink + tl.sum(mass, 1)
    acc = tl.dot(mass.to(DOT), k, acc * shrink[:, None], input_precision="ieee")
    return acc, top, total


@triton.jit
def _turned_back(  # type: ignore[no-untyped-def]
    x, cos, sin, t, pairs, LINES: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr
):
    """Lines [LINES, BLOCK] whose last pairs of channels are turned by minus the angles of t."""
    pair = tl.arange(0, BLOCK // 2) - (D // 2 - pairs)
    turned = (pair >= 0) & (pair < pairs)
    c = tl.load(cos + t * pairs + pair, mask=turned, other=1.0)[None, :]
    s = tl.load(sin + t * pairs + pair, mask=turned, other=0.0)[None, :]
    even, odd = tl.split(tl.reshape(x, (LINES, BLOCK // 2, 2)))
    return tl.reshape(tl.join(even * c + odd * s, odd * c - even * s), (LINES, BLOCK))


@triton.jit
def _share(  # type: ignore[no-untyped-def]
    queries, ring, rows, indices, position, parts, sizes,
    heads, slots, reach, ratio, scale,
    WINDOW: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr,
    KEYS: tl.constexpr, NEAR: tl.constexpr, SPLITS: tl.constexpr, TURNS: tl.constexpr,
    INDEXED: tl.constexpr, TOGETHER: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Sums over the keys of one split: blocks number split, split + SPLITS and so on."""
    split = tl.program_id(0)
    first = tl.program_id(1) * HEADS
    row = tl.program_id(2).to(tl.int64)
    start = tl.load(position).to(tl.int32)
    if TOGETHER:
        newest = start - 1
        visible = reach
    else:
        newest = start + tl.program_id(2)
        visible = tl.minimum((newest + 1) // ratio, reach)
    largest = tl.full((HEADS,), _FLOOR, tl.float32)
    total = tl.zeros((HEADS,), tl.float32)
    head = first + tl.arange(0, HEADS)
    line = (row * SPLITS + split) * heads + head
    alive = _alive(split, newest, visible, KEYS, NEAR)
    for later in tl.static_range(1, TURNS):
        alive = alive | _alive(split + later * SPLITS, newest, visible, KEYS, NEAR)
    if alive:
        q = _queries(queries, row, first, heads, D, BLOCK, HEADS).to(DOT)
        acc = tl.zeros((HEADS, BLOCK), tl.float32)
        for turn in range(TURNS):
            block = split + turn * SPLITS
            if _alive(block, newest, visible, KEYS, NEAR):
                age = block * KEYS + tl.arange(0, KEYS)
                near = (age < WINDOW) & (age <= newest)
                place = (tl.where(near, newest - age, 0) % slots).to(tl.int64) * D
                far_at, far = _far(
                    rows, indices, row, age - NEAR * KEYS, reach, visible, D, INDEXED
                )
                at = tl.where(block < NEAR, ring + place, far_at)
                seen = tl.where(block < NEAR, near, far)
                acc, largest, total = _take(q, at, seen, acc, largest, total, scale, D, BLOCK, DOT)
        channel = tl.arange(0, BLOCK)
        parts_at = parts + line[:, None] * D + channel[None, :]
        tl.store(parts_at, acc, mask=(head < heads)[:, None] & (channel < D)[None, :])
    tl.store(sizes + 2 * line, largest, mask=head < heads)
    tl.store(sizes + 2 * line + 1, total, mask=head < heads)


@triton.jit
def _combine(  # type: ignore[no-untyped-def]
    parts, sizes, sink, cos, sin, position, o, heads, pairs,
    D: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, ROOM: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    """One head of one row: its splits' sums in order, the sink, and the rotation back."""
    head = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    every = tl.arange(0, ROOM)
    at = sizes + 2 * ((row * SPLITS + every) * heads + head)
    largest = tl.load(at, mask=every < SPLITS, other=_FLOOR)
    total = tl.load(at + 1, mask=every < SPLITS, other=0.0)
    extra = tl.load(sink + head)
    top = tl.maximum(tl.max(largest, 0), extra)
    mass = tl.sum(tl.exp(largest - top) * total, 0) + tl.exp(extra - top)
    channel = tl.arange(0, BLOCK)
    mixed = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, SPLITS, STEP):
        split = first + tl.arange(0, STEP)
        line = (row * SPLITS + split) * heads + head
        size = tl.load(sizes + 2 * line, mask=split < SPLITS, other=_FLOOR)
        # A split without keys has written nothing but its size.
        there = tl.load(sizes + 2 * line + 1, mask=split < SPLITS, other=0.0) > 0.0
        part_at = parts + line[:, None] * D + channel[None, :]
        part = tl.load(part_at, mask=there[:, None] & (channel < D)[None, :], other=0.0)
        mixed += tl.sum(tl.exp(size - top)[:, None] * part, 0)
    t = tl.load(position) + row
    turned = _turned_back((mixed / mass)[None, :], cos, sin, t, pairs, 1, D, BLOCK)
    o_at = o + (row * heads + head) * D + channel[None, :]
    tl.store(o_at, turned.to(o.dtype.element_ty), mask=(channel < D)[None, :])


@triton.jit
def _long(  # type: ignore[no-untyped-def]
    queries, kv, rows, indices, sink, cos, sin, position, o,
    heads, pairs, reach, ratio, scale,
    WINDOW: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr,
    KEYS: tl.constexpr, NEAR: tl.constexpr, INDEXED: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """All keys of some heads of one row."""
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * HEADS
    newest = tl.load(position).to(tl.int32) + tl.program_id(0)
    visible = tl.minimum((newest + 1) // ratio, reach)
    q = _queries(queries, row, first, heads, D, BLOCK, HEADS).to(DOT)
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
            far_at, far = _far(rows, indices, row, age - NEAR * KEYS, reach, visible, D, INDEXED)
            at = tl.where(block < NEAR, kv + place, far_at)
            seen = tl.where(block < NEAR, near, far)
            acc, largest, total = _take(q, at, seen, acc, largest, total, scale, D, BLOCK, DOT)
        block += 1
    head = first + tl.arange(0, HEADS)
    extra = tl.load(sink + head, mask=head < heads, other=0.0)
    top = tl.maximum(largest, extra)
    shrink = tl.exp(largest - top)
    mixed = acc * (shrink / (total * shrink + tl.exp(extra - top)))[:, None]
    turned = _turned_back(mixed, cos, sin, newest.to(tl.int64), pairs, HEADS, D, BLOCK)
    channel = tl.arange(0, BLOCK)
    o_at = o + (row * heads + head)[:, None] * D + channel[None, :]
    keep = (head < heads)[:, None] & (channel < D)[None, :]
    tl.store(o_at, turned.to(o.dtype.element_ty), mask=keep)
