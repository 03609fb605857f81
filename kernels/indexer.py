"""Which compressed rows a query attends to: scores of all that it sees, and the best of them.

The best are found by narrowing the range of the scores, as ordered integers, until the right number
lies above: exact, and the same bits wherever the rows lie. Few keys are searched by one program a
row; many are cut into slices, whose best are the candidates of a second search. A row that sees no
more than it may choose has nothing to score: its programs end at once.

A step is one launch: whichever program scores the last keys of a slice searches it, and whichever
finds the last slice's best searches those. A prefill scores several rows with the keys that it
reads, in launches of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import ahead, meeting, packed, packing
from kernels.launch import (
    DECODE_ROWS,
    dot_type,
    output,
    require,
    require_activation,
    require_contiguous,
)
from kernels.packed import Packed, Rows
from kernels.workspace import Workspace, room


@dataclass(frozen=True, slots=True)
class Step:
    """Launch of a step; `keys` and `slice` are powers of two."""

    keys: int  # that a program scores at a time, 16 or more
    programs: int  # of all rows, more only where slices are many
    slice: int  # scores that one program searches, more than are chosen
    warps: int
    early: bool = False  # begin before the launch before has ended


@dataclass(frozen=True, slots=True)
class Tile:
    """Launches of a prefill: scores, then searches; powers of two but for `rows`."""

    keys: int  # of a program of the scores, 16 or more
    rows: int  # that such a program scores, one after another
    warps: int
    slice: int  # scores that one program searches; none more, no second search
    search_warps: int


_WHOLE = 8192  # scores up to which one search is as fast as two
_SCORES = 1 << 24  # held at once: 64 MiB
_LINE = tl.constexpr(16)  # scores; rows of them begin at one and end with one


def default_step(capacity: int, count: int, dtype: torch.dtype) -> Step:
    """One search wherever the scores fit the registers of a program."""
    size = _slice(capacity, count)
    if dtype == torch.float32:
        return Step(keys=16, programs=264, slice=size, warps=8)
    if size <= 4096:
        return Step(keys=32, programs=264, slice=size, warps=8, early=True)
    return Step(keys=128, programs=132, slice=size, warps=8, early=True)


def default_tile(capacity: int, count: int, rows: int, dtype: torch.dtype) -> Tile:
    """Slices with about as many candidates as scores of their own; it never changes a result."""
    scored, warps = (16, 8) if dtype == torch.float32 else (128, 4)
    together = 1 if rows <= DECODE_ROWS else 16
    size = _slice(capacity, count)
    return Tile(keys=scored, rows=together, warps=warps, slice=size, search_warps=16)


def _slice(capacity: int, count: int) -> int:
    whole = triton.next_power_of_2(max(capacity, 16))
    if whole <= _WHOLE:
        return whole
    balanced = triton.next_power_of_2(round((capacity * count) ** 0.5))
    return min(whole, max(balanced, triton.next_power_of_2(count + 1), _WHOLE))


def choose(
    queries: Tensor,
    keys: Rows,
    weights: Tensor,
    position: Tensor,
    *,
    ratio: int,
    count: int,
    out: Tensor | None = None,
    tile: Tile | Step | None = None,
    workspace: Workspace | None = None,
) -> Tensor:
    """Row numbers int32 [m, count] of each query's best `keys`, ascending, -1 after the last.

    Row r is at `position[0] + r` (int64 [1], on the device), called t, and sees keys
    0 .. (t + 1) // ratio - 1. score(t, w) = sum over heads of weights * relu(q . k), with `queries`
    [m, h, d], BF16 or float32, `keys` [capacity, d] of that dtype or packed, and `weights` float32
    [m, h] (whose rows may lie apart); sums are float32. Of equal scores the lower row wins. Up to
    eight rows are a step, any number is scored in blocks. Packed keys choose the rows that the
    plain ones do that they stand for. Raises ValueError for operands that do not fit.
    """
    m, capacity = queries.shape[0], packed.capacity(keys)
    _check(queries, keys, weights, position, ratio, count)
    chosen = output(out, (m, count), torch.int32, queries, *packed.tensors(keys), weights, position)
    if chosen.numel() == 0:
        return chosen
    if tile is None:
        few = m <= DECODE_ROWS
        tile = (
            default_step(capacity, count, queries.dtype)
            if few
            else default_tile(capacity, count, m, queries.dtype)
        )
    slices = triton.cdiv(max(capacity, 1), tile.slice)
    require(slices == 1 or tile.slice > count, f"slices of {tile.slice} for {count} choices")
    if isinstance(tile, Step):
        _launch_step(queries, keys, weights, position, chosen, ratio, tile, workspace)
    else:
        _launch_many(queries, keys, weights, position, chosen, ratio, tile)
    return chosen


def _check(
    queries: Tensor, keys: Rows, weights: Tensor, position: Tensor, ratio: int, count: int
) -> None:
    require(queries.dim() == 3, f"queries {tuple(queries.shape)} are not [rows, heads, channels]")
    m, heads, d = queries.shape
    require_activation("queries", queries)
    if isinstance(keys, Packed):
        fault = packed.fault(keys, keys=True)
        require(not fault, fault)
        require(keys.channels == d, f"packed keys of {keys.channels} channels, queries of {d}")
    else:
        require(
            keys.dim() == 2 and keys.shape[1] == d and keys.dtype == queries.dtype,
            f"keys {keys.dtype} {tuple(keys.shape)} do not fit the queries",
        )
        require_contiguous(keys=keys)
    require(weights.shape == (m, heads), f"weights {tuple(weights.shape)} are not [rows, heads]")
    require(weights.dtype == torch.float32, f"weights are {weights.dtype}, not float32")
    require(position.shape == (1,) and position.dtype == torch.int64, "position is not int64 [1]")
    require(ratio >= 1 and count >= 1, f"{count} of every {ratio} positions")
    require(heads <= 1 or weights.stride(1) == 1, "the weights of a row are not side by side")
    require_contiguous(queries=queries)


def _width(capacity: int) -> int:
    return triton.cdiv(max(capacity, 1), _LINE.value) * _LINE.value


def _launch_step(
    queries: Tensor, keys: Rows, weights: Tensor, position: Tensor, chosen: Tensor, ratio: int,
    tile: Step, workspace: Workspace | None,
) -> None:  # fmt: skip
    (m, heads, d), capacity, count = queries.shape, packed.capacity(keys), chosen.shape[1]
    given = packed.operands(keys)
    slices = triton.cdiv(max(capacity, 1), tile.slice)
    met = room(workspace, queries.device, 0, m * (slices + 1))
    score = queries.new_empty((m, _width(capacity)), dtype=torch.float32)
    names = chosen.new_empty((m, slices if slices > 1 else 0, count))
    blocks = triton.cdiv(max(capacity, 1), tile.keys)
    programs = max(min(tile.programs // m, blocks), slices)
    _step[(programs, m)](
        queries, given.rows, given.scales, weights, position, score, names, chosen, met.arrivals,
        weights.stride(0),
        heads, capacity, score.shape[1], ratio, count,
        D=d, BLOCK=max(triton.next_power_of_2(d), 16),
        HEADS=max(triton.next_power_of_2(heads), 16), KEYS=tile.keys, SLICE=tile.slice,
        SLICES=slices, ROOM=triton.next_power_of_2(count), SCORED=capacity > count,
        SIZES=_sizes(min(tile.slice, triton.next_power_of_2(max(capacity, 1))), count),
        NAMED_SIZES=_sizes(triton.next_power_of_2(slices * count), count),
        DOT=dot_type(queries), SCALES=given.bytes, EARLY=tile.early, num_warps=tile.warps,
        launch_pdl=tile.early,
    )  # fmt: skip


def _launch_many(
    queries: Tensor, keys: Rows, weights: Tensor, position: Tensor, chosen: Tensor, ratio: int,
    tile: Tile,
) -> None:  # fmt: skip
    (m, count), capacity = chosen.shape, packed.capacity(keys)
    slices = triton.cdiv(max(capacity, 1), tile.slice)
    block = m if m <= DECODE_ROWS else max(_SCORES // max(capacity, 1), DECODE_ROWS)
    scored = capacity > count
    size = (min(m, block), _width(capacity)) if scored else (1, 1)
    score = queries.new_empty(size, dtype=torch.float32)
    best = chosen if slices == 1 else chosen.new_empty((min(m, block), slices, count))
    for first in range(0, m, block):
        rows = slice(first, min(first + block, m))
        if scored:
            _launch_scores(queries[rows], keys, weights[rows], position, score, first, ratio, count,
                           tile)  # fmt: skip
        _launch_search(score, position, chosen[rows], best, first, capacity, ratio, tile)


def _launch_scores(
    queries: Tensor, keys: Rows, weights: Tensor, position: Tensor, score: Tensor, first: int,
    ratio: int, count: int, tile: Tile,
) -> None:  # fmt: skip
    (m, heads, d), capacity, given = queries.shape, packed.capacity(keys), packed.operands(keys)
    _scores[(triton.cdiv(capacity, tile.keys), triton.cdiv(m, tile.rows))](
        queries, given.rows, given.scales, weights, position, score, m, first, weights.stride(0),
        heads, capacity, score.shape[1], ratio, count,
        D=d, BLOCK=max(triton.next_power_of_2(d), 16),
        HEADS=max(triton.next_power_of_2(heads), 16), KEYS=tile.keys, ROWS=tile.rows,
        DOT=dot_type(queries), SCALES=given.bytes, num_warps=tile.warps,
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
            score, best, position, best, first, capacity, score.shape[1], ratio, count, slices,
            SLICE=tile.slice, SLICED=True, NAMED=False, ROOM=triton.next_power_of_2(count),
            SIZES=_sizes(most, count), num_warps=tile.search_warps,
        )  # fmt: skip
        most = triton.next_power_of_2(slices * count)
    _search[(m, 1)](
        score, best, position, chosen, first, capacity, score.shape[1], ratio, count, slices,
        SLICE=tile.slice, SLICED=False, NAMED=slices > 1, ROOM=triton.next_power_of_2(count),
        SIZES=_sizes(most, count), num_warps=tile.search_warps,
    )  # fmt: skip


def _sizes(most: int, count: int) -> tuple[int, ...]:
    """Numbers of scores, ascending to `most`, that the search is compiled for."""
    sizes = [most]
    while sizes[0] // 4 > count:
        sizes.insert(0, sizes[0] // 4)
    return tuple(sizes)


@triton.jit
def _score(k, q, weight):  # type: ignore[no-untyped-def]
    """Scores of `k` [keys, d] by `q` [heads, d] with a `weight` a head."""
    dots = tl.dot(k, tl.trans(q), input_precision="ieee")
    value = tl.sum(tl.maximum(dots, 0.0) * weight[None, :], 1)
    return tl.where(value == 0.0, 0.0, value)  # of two zeros neither is the larger


# Neither the number of rows nor where they begin is specialised on: one row must run the very code
# that eight rows run.
@triton.jit(do_not_specialize=["m", "offset", "spread"])
def _scores(  # type: ignore[no-untyped-def]
    queries, keys, scales, weights, position, score, m, offset, spread, heads, capacity, width,
    ratio, count,
    D: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr,
    ROWS: tl.constexpr, DOT: tl.constexpr, SCALES: tl.constexpr,
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
        if SCALES == 0:
            k_at = keys + key.to(tl.int64)[:, None] * D + channel[None, :]
            inside = (key < most)[:, None] & (channel < D)[None, :]
            k = tl.load(k_at, mask=inside, other=0.0).to(DOT)
        else:
            code, byte = packing.ask_keys(keys, scales, key, key < most, D, SCALES)
            k = packing.keys(code, byte, DOT)
        there = (head < heads)[:, None] & (channel < D)[None, :]
        while row < stop:
            line = row.to(tl.int64) * heads + head
            q = tl.load(queries + line[:, None] * D + channel[None, :], mask=there, other=0.0)
            weight_at = weights + row.to(tl.int64) * spread + head
            weight = tl.load(weight_at, mask=head < heads, other=0.0)
            value = _score(k, q.to(DOT), weight)
            tl.store(score + row.to(tl.int64) * width + key, value, mask=key < most)
            row += 1


@triton.jit
def _named(names, base, lane, inside, NAMED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Row numbers of the scores number `lane`."""
    name = base + lane
    if NAMED:
        name = tl.load(names + lane, mask=inside, other=0, cache_modifier=".cg")
    return name


@triton.jit
def _ordered(bits):  # type: ignore[no-untyped-def]
    """The bits of float32 numbers as integers in the numbers' order; its own inverse."""
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _between(low, high, held, above, count, turn):  # type: ignore[no-untyped-def]
    """Where to look next between two ordered integers, neither of which it is.

    `held` scores are at least `low`, `above` at least `high`. As if they lay evenly, which halves
    the turns of halving the range; numbers that lie otherwise are left to halving after some.
    """
    share = (held - count).to(tl.float32) / (held - above).to(tl.float32)
    share = tl.minimum(tl.maximum(share, 0.0625), 0.9375)
    a = _ordered(low.to(tl.int32)).to(tl.float32, bitcast=True)
    b = _ordered((high - 1).to(tl.int32)).to(tl.float32, bitcast=True)
    guess = _ordered((a * (1.0 - share) + b * share).to(tl.int32, bitcast=True)).to(tl.int64)
    guess = tl.where(turn < 24, guess, low + (high - low) // 2)
    return tl.minimum(tl.maximum(guess, low + 1), high - 1)


@triton.jit
def _best(  # type: ignore[no-untyped-def]
    score, names, out, n, base, count, SIZE: tl.constexpr, NAMED: tl.constexpr
):
    """Store the row numbers of the `count` best of more than `count` scores."""
    lane = tl.arange(0, SIZE)
    inside = lane < n
    name = _named(names, base, lane, inside, NAMED)
    # Other programs wrote the scores, which this processor's first cache may know nothing of.
    if NAMED:
        number = tl.load(score + name, mask=inside, other=0.0, cache_modifier=".cg")
    else:  # whole lines, which threads read four at a time
        asked = lane < tl.cdiv(n, _LINE) * _LINE
        number = tl.load(score + base + lane, mask=asked, other=0.0, cache_modifier=".cg")
    key = _ordered(number.to(tl.int32, bitcast=True))
    least = tl.min(tl.where(inside, key, 0x7FFFFFFF), 0).to(tl.int64)
    key = tl.where(inside, key, -0x80000000)
    # `count` or more are at least `low`, `held` of them; fewer, `above`, are at least `high`.
    low, high, held, above, turn = least, tl.max(key, 0).to(tl.int64) + 1, n, 0, 0
    while (high - low > 1) & (held != count):
        middle = _between(low, high, held, above, count, turn)
        found = tl.sum((key >= middle.to(tl.int32)).to(tl.int32), 0)
        enough = found >= count
        low = tl.where(enough, middle, low)
        held = tl.where(enough, found, held)
        high = tl.where(enough, high, middle)
        above = tl.where(enough, above, found)
        turn += 1
    taken = key >= low.to(tl.int32)
    if held != count:  # only of scores that are all equal some are left, the last
        more = key > (high - 1).to(tl.int32)
        level = taken & ~more
        taken = more | (level & (tl.cumsum(level.to(tl.int32), 0) <= count - above))
    place = tl.cumsum(taken.to(tl.int32), 0) - 1
    tl.store(out + place, name, mask=taken)


@triton.jit
def _find(  # type: ignore[no-untyped-def]
    score, names, out, n, base, count, SIZES: tl.constexpr, ROOM: tl.constexpr, NAMED: tl.constexpr
):
    """Store the row numbers of the best of `n` scores, all if they are no more than `count`."""
    if n <= count:
        lane = tl.arange(0, ROOM)
        name = _named(names, base, lane, lane < n, NAMED)
        tl.store(out + lane, name, mask=lane < n)
    for i in tl.static_range(len(SIZES)):
        fits = (n > count) & (n <= SIZES[i])
        if i > 0:
            fits = fits & (n > SIZES[i - 1])
        if fits:
            _best(score, names, out, n, base, count, SIZES[i], NAMED)


@triton.jit
def _all(out, visible, count, ROOM: tl.constexpr):  # type: ignore[no-untyped-def]
    """Choose every visible row."""
    lane = tl.arange(0, ROOM)
    tl.store(out + lane, tl.where(lane < visible, lane, -1), mask=lane < count)


@triton.jit(do_not_specialize=["spread"])
def _step(  # type: ignore[no-untyped-def]
    queries, keys, scales, weights, position, score, names, out, arrivals, spread, heads, capacity,
    width, ratio, count,
    D: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr,
    SLICE: tl.constexpr, SLICES: tl.constexpr, ROOM: tl.constexpr, SCORED: tl.constexpr,
    SIZES: tl.constexpr, NAMED_SIZES: tl.constexpr, DOT: tl.constexpr, SCALES: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Scores of one row's keys, a share a program; the last of a slice, and of all, search."""
    program = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    if EARLY:
        ahead.wait()
    ahead.let_next_begin()
    visible = (tl.load(position).to(tl.int32) + tl.program_id(1) + 1) // ratio
    visible = tl.minimum(visible, capacity)
    score += row * width
    out += row * count
    if (visible <= count) & (program == 0):
        _all(out, visible, count, ROOM)
    if SCORED:
        # Shares are equal and whole slices are made of them.
        share = KEYS
        while share * tl.num_programs(0) < visible:
            share *= 2
        first = program * share
        if (visible > count) & (first < visible):
            stop = tl.minimum(first + share, visible)
            if SCALES == 0:
                _score_share(queries, keys, weights + row * spread, score, row, first, stop, heads,
                             D, BLOCK, HEADS, KEYS, DOT)  # fmt: skip
            else:
                _score_packed(queries, keys, scales, weights + row * spread, score, row, first,
                              stop, heads, D, HEADS, KEYS, DOT, SCALES)  # fmt: skip
            part = first // SLICE
            base = part * SLICE
            n = tl.minimum(visible - base, SLICE)
            names += row * SLICES * count
            arrivals += row * (SLICES + 1)
            if meeting.arrive(arrivals + part) == tl.cdiv(n, share) - 1:
                tl.store(arrivals + part, 0)
                several = visible > SLICE
                found = tl.where(several, names + part * count, out)
                _find(score, names, found, n, base, count, SIZES, ROOM, False)
                if SLICES > 1 and several:
                    n = visible // SLICE * count + tl.minimum(visible % SLICE, count)
                    if meeting.arrive(arrivals + SLICES) == tl.cdiv(visible, SLICE) - 1:
                        tl.store(arrivals + SLICES, 0)
                        _find(score, names, out, n, 0, count, NAMED_SIZES, ROOM, True)


@triton.jit
def _score_share(  # type: ignore[no-untyped-def]
    queries, keys, weights, score, row, first, stop, heads,
    D: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """Scores of keys `first` .. `stop` - 1; the next keys are read while some are multiplied."""
    channel = tl.arange(0, BLOCK)
    head = tl.arange(0, HEADS)
    key = first + tl.arange(0, KEYS)
    inside = (channel < D)[None, :]
    k_at = keys + key.to(tl.int64)[:, None] * D + channel[None, :]
    k = tl.load(k_at, mask=(key < stop)[:, None] & inside, other=0.0)
    q_at = queries + (row * heads + head)[:, None] * D + channel[None, :]
    q = tl.load(q_at, mask=(head < heads)[:, None] & inside, other=0.0).to(DOT)
    weight = tl.load(weights + head, mask=head < heads, other=0.0)
    while first < stop:
        k_at += KEYS * D
        following = tl.load(k_at, mask=(key + KEYS < stop)[:, None] & inside, other=0.0)
        tl.store(score + key, _score(k.to(DOT), q, weight), mask=key < stop)
        k = following
        key += KEYS
        first += KEYS


@triton.jit
def _score_packed(  # type: ignore[no-untyped-def]
    queries, keys, scales, weights, score, row, first, stop, heads,
    D: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr, DOT: tl.constexpr,
    SCALES: tl.constexpr,
):  # fmt: skip
    """`_score_share` of packed keys."""
    head = tl.arange(0, HEADS)
    key = first + tl.arange(0, KEYS)
    code, byte = packing.ask_keys(keys, scales, key, key < stop, D, SCALES)
    q_at = queries + (row * heads + head)[:, None] * D + tl.arange(0, D)[None, :]
    q = tl.load(q_at, mask=(head < heads)[:, None], other=0.0).to(DOT)
    weight = tl.load(weights + head, mask=head < heads, other=0.0)
    while first < stop:
        later, scale = packing.ask_keys(keys, scales, key + KEYS, key + KEYS < stop, D, SCALES)
        tl.store(score + key, _score(packing.keys(code, byte, DOT), q, weight), mask=key < stop)
        code, byte = later, scale
        key += KEYS
        first += KEYS


@triton.jit(do_not_specialize=["offset"])
def _search(  # type: ignore[no-untyped-def]
    score, names, position, out, offset, capacity, width, ratio, count, slices,
    SLICE: tl.constexpr, SLICED: tl.constexpr, NAMED: tl.constexpr, ROOM: tl.constexpr,
    SIZES: tl.constexpr,
):  # fmt: skip
    """The best of a row's slice (`SLICED`), of the slices' best (`NAMED`), or of the whole row."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    visible = (tl.load(position).to(tl.int32) + offset + tl.program_id(0) + 1) // ratio
    visible = tl.minimum(visible, capacity)
    score += row * width
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
    if visible > count:
        _find(score, names, out, n, base, count, SIZES, ROOM, NAMED)
    elif not SLICED:
        _all(out, visible, count, ROOM)
