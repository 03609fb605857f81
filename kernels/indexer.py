"""Which compressed rows a query attends to: scores of all that it sees, and the best of them.

The best are found by halving the range of the scores, as ordered integers, until the right number
lies above: exact, and the same bits wherever the rows lie. Few keys are searched by one program a
row; many are cut into slices, whose best are the candidates of a second search. A row that sees no
more than it may choose has nothing to score: its programs end at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

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
    """Launch of the scores and of the search; powers of two but for `rows`."""

    keys: int  # of a program of the scores, 16 or more
    rows: int  # that such a program scores, one after another
    warps: int
    slice: int  # scores that one program searches; none more, no second search
    search_warps: int


_WHOLE = 8192  # scores up to which one search is as fast as two
_SCORES = 1 << 24  # held at once: 64 MiB


def default_tile(capacity: int, count: int, rows: int, dtype: torch.dtype) -> Tile:
    """Slices with about as many candidates as scores of their own; it never changes a result."""
    scored, warps = (16, 8) if dtype == torch.float32 else (128, 4)
    size = triton.next_power_of_2(max(capacity, 1))
    if capacity > _WHOLE:
        balanced = triton.next_power_of_2(round((capacity * count) ** 0.5))
        size = min(size, max(balanced, triton.next_power_of_2(count + 1)))
    together = 1 if rows <= DECODE_ROWS else 16
    return Tile(keys=scored, rows=together, warps=warps, slice=size, search_warps=16)


def choose(
    queries: Tensor,
    keys: Tensor,
    weights: Tensor,
    position: Tensor,
    *,
    ratio: int,
    count: int,
    out: Tensor | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """Row numbers int32 [m, count] of each query's best `keys`, ascending, -1 after the last.

    Row r is at `position[0] + r` (int64 [1], on the device), called t, and sees keys
    0 .. (t + 1) // ratio - 1. score(t, w) = sum over heads of weights * relu(q . k), with `queries`
    [m, h, d] and `keys` [capacity, d] of one dtype, BF16 or float32, and `weights` float32 [m, h]
    (whose rows may lie apart);
    sums are float32. Of equal scores the lower row wins. Any number of rows: many are scored in
    blocks. Raises ValueError for operands that do not fit.
    """
    m, capacity = queries.shape[0], keys.shape[0]
    _check(queries, keys, weights, position, ratio, count)
    chosen = output(out, (m, count), torch.int32, queries, keys, weights, position)
    if chosen.numel() == 0:
        return chosen
    tile = tile or default_tile(capacity, count, m, queries.dtype)
    slices = triton.cdiv(max(capacity, 1), tile.slice)
    require(slices == 1 or tile.slice > count, f"slices of {tile.slice} for {count} choices")
    block = m if m <= DECODE_ROWS else max(_SCORES // max(capacity, 1), DECODE_ROWS)
    scored = capacity > count
    score = queries.new_empty((min(m, block), capacity) if scored else (1, 1), dtype=torch.float32)
    best = chosen if slices == 1 else chosen.new_empty((min(m, block), slices, count))
    for first in range(0, m, block):
        rows = slice(first, min(first + block, m))
        if scored:
            _launch_scores(queries[rows], keys, weights[rows], position, score, first, ratio, count,
                           tile)  # fmt: skip
        _launch_search(score, position, chosen[rows], best, first, capacity, ratio, tile)
    return chosen


def _check(
    queries: Tensor, keys: Tensor, weights: Tensor, position: Tensor, ratio: int, count: int
) -> None:
    require(queries.dim() == 3, f"queries {tuple(queries.shape)} are not [rows, heads, channels]")
    m, heads, d = queries.shape
    require_activation("queries", queries)
    require(
        keys.dim() == 2 and keys.shape[1] == d and keys.dtype == queries.dtype,
        f"keys {keys.dtype} {tuple(keys.shape)} do not fit the queries",
    )
    require(weights.shape == (m, heads), f"weights {tuple(weights.shape)} are not [rows, heads]")
    require(weights.dtype == torch.float32, f"weights are {weights.dtype}, not float32")
    require(position.shape == (1,) and position.dtype == torch.int64, "position is not int64 [1]")
    require(ratio >= 1 and count >= 1, f"{count} of every {ratio} positions")
    require(heads <= 1 or weights.stride(1) == 1, "the weights of a row are not side by side")
    require_contiguous(queries=queries, keys=keys)


def _launch_scores(
    queries: Tensor, keys: Tensor, weights: Tensor, position: Tensor, score: Tensor, first: int,
    ratio: int, count: int, tile: Tile,
) -> None:  # fmt: skip
    (m, heads, d), capacity = queries.shape, keys.shape[0]
    _scores[(triton.cdiv(capacity, tile.keys), triton.cdiv(m, tile.rows))](
        queries, keys, weights, position, score, m, first, weights.stride(0), heads, capacity,
        ratio, count, D=d, BLOCK=max(triton.next_power_of_2(d), 16),
        HEADS=max(triton.next_power_of_2(heads), 16), KEYS=tile.keys, ROWS=tile.rows,
        DOT=dot_type(queries), num_warps=tile.warps,
    )  # fmt: skip


def _launch_search(
    score: Tensor, position: Tensor, chosen: Tensor, best: Tensor, first: int, capacity: int,
    ratio: int, tile: Tile,
) -> None:  # fmt: skip
    m, count = chosen.shape
    slices = triton.cdiv(max(capacity, 1), tile.slice)
    most = min(tile.slice, triton.next_power_of_2(max(capacity, 1)))
    if slices > 1:
        _search[(m, slices)](
            score, best, position, best, first, capacity, ratio, count, slices,
            SLICE=tile.slice, SLICED=True, NAMED=False, ROOM=triton.next_power_of_2(count),
            **_sizes(most, count), num_warps=tile.search_warps,
        )  # fmt: skip
        most = triton.next_power_of_2(slices * count)
    _search[(m, 1)](
        score, best, position, chosen, first, capacity, ratio, count, slices,
        SLICE=tile.slice, SLICED=False, NAMED=slices > 1, ROOM=triton.next_power_of_2(count),
        **_sizes(most, count), num_warps=tile.search_warps,
    )  # fmt: skip


def _sizes(most: int, count: int) -> dict[str, int]:
    """Numbers of scores that the search is compiled for: LEAST times powers of four to `most`."""
    least, levels = most, 1
    while least // 4 > count:
        least, levels = least // 4, levels + 1
    return {"LEAST": least, "LEVELS": levels}


# Neither the number of rows nor where they begin is specialised on: one row must run the very code
# that eight rows run.
@triton.jit(do_not_specialize=["m", "offset", "spread"])
def _scores(  # type: ignore[no-untyped-def]
    queries, keys, weights, position, score, m, offset, spread, heads, capacity, ratio, count,
    D: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr,
    ROWS: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Scores of a block of keys by some rows; of what the last of them does not see, none."""
    first = tl.program_id(0) * KEYS
    row = tl.program_id(1) * ROWS
    stop = tl.minimum(row + ROWS, m)
    start = tl.load(position).to(tl.int32) + offset
    most = tl.minimum((start + stop) // ratio, capacity)
    if (most > count) & (first < most):
        key = first + tl.arange(0, KEYS)
        channel = tl.arange(0, BLOCK)
        head = tl.arange(0, HEADS)
        k_at = keys + key.to(tl.int64)[:, None] * D + channel[None, :]
        k = tl.load(k_at, mask=(key < most)[:, None] & (channel < D)[None, :], other=0.0).to(DOT)
        there = (head < heads)[:, None] & (channel < D)[None, :]
        while row < stop:
            line = row.to(tl.int64) * heads + head
            q = tl.load(queries + line[:, None] * D + channel[None, :], mask=there, other=0.0)
            weight_at = weights + row.to(tl.int64) * spread + head
            weight = tl.load(weight_at, mask=head < heads, other=0.0)
            dots = tl.dot(k, tl.trans(q.to(DOT)), input_precision="ieee")
            value = tl.sum(tl.maximum(dots, 0.0) * weight[None, :], 1)
            value = tl.where(value == 0.0, 0.0, value)  # of two zeros neither is the larger
            tl.store(score + row.to(tl.int64) * capacity + key, value, mask=key < most)
            row += 1


@triton.jit
def _named(names, base, lane, inside, NAMED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Row numbers of the scores number `lane`."""
    name = base + lane
    if NAMED:
        name = tl.load(names + lane, mask=inside, other=0)
    return name


@triton.jit
def _best(  # type: ignore[no-untyped-def]
    score, names, out, n, base, count, SIZE: tl.constexpr, NAMED: tl.constexpr
):
    """Store the row numbers of the `count` best of more than `count` scores."""
    lane = tl.arange(0, SIZE)
    inside = lane < n
    name = _named(names, base, lane, inside, NAMED)
    bits = tl.load(score + name, mask=inside, other=0.0).to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # in the order of the numbers
    least = tl.min(tl.where(inside, key, 0x7FFFFFFF), 0).to(tl.int64)
    key = tl.where(inside, key, -0x80000000)
    # `count` or more are at least `low`, `held` of them; fewer than `count` are at least `high`.
    low, high, held = least, tl.max(key, 0).to(tl.int64) + 1, n
    while (high - low > 1) & (held != count):
        middle = low + (high - low) // 2
        number = tl.sum((key >= middle.to(tl.int32)).to(tl.int32), 0)
        enough = number >= count
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
        held = tl.where(enough, number, held)
    above = key > (high - 1).to(tl.int32)
    level = (key >= low.to(tl.int32)) & (key <= (high - 1).to(tl.int32))
    missing = count - tl.sum(above.to(tl.int32), 0)
    taken = above | (level & (tl.cumsum(level.to(tl.int32), 0) <= missing))
    place = tl.cumsum(taken.to(tl.int32), 0) - 1
    tl.store(out + place, name, mask=taken)


@triton.jit(do_not_specialize=["offset"])
def _search(  # type: ignore[no-untyped-def]
    score, names, position, out, offset, capacity, ratio, count, slices,
    SLICE: tl.constexpr, SLICED: tl.constexpr, NAMED: tl.constexpr, ROOM: tl.constexpr,
    LEAST: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """The best of a row's slice (`SLICED`), of the slices' best (`NAMED`), or of the whole row."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    visible = (tl.load(position).to(tl.int32) + offset + tl.program_id(0) + 1) // ratio
    visible = tl.minimum(visible, capacity)
    score += row * capacity
    base = part * SLICE
    n = visible
    if SLICED:
        n = tl.minimum(visible - base, SLICE)
        out += (row * slices + part) * count
    else:
        out += row * count
    if NAMED:
        n = visible // SLICE * count + tl.minimum(visible % SLICE, count)
        names += row * slices * count
    lane = tl.arange(0, ROOM)
    if visible <= count:
        if not SLICED:
            tl.store(out + lane, tl.where(lane < visible, lane, -1), mask=lane < count)
    elif n <= count:
        name = _named(names, base, lane, lane < n, NAMED)
        tl.store(out + lane, name, mask=lane < n)
    else:
        for level in tl.static_range(LEVELS):
            fits = n <= LEAST * 4**level
            if level > 0:
                fits = fits & (n > LEAST * 4 ** (level - 1))
            if fits:
                _best(score, names, out, n, base, count, LEAST * 4**level, NAMED)
