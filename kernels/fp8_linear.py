"""Linear layers on FP8 weights: E4M3 with one power-of-two scale per 128 x 128 block.

Up to eight rows take the decode form: the weight tile is the left operand of the tensor cores and
the rows, padded to eight, the right one, so every width costs the same and gives the same bits.
More rows take the prefill form. Either adds up a row's products in steps of 128 channels, times
the block's scale once a step, in an order that depends on the weight's shape alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import ahead, meeting, narrow
from kernels.launch import (
    DECODE_ROWS,
    dot_type,
    output,
    require,
    require_activation,
    require_contiguous,
)
from kernels.workspace import Workspace, room

BLOCK = 128


@dataclass(frozen=True, slots=True)
class Tile:
    """Launch of either form; `columns` is a power of two from 16 to 128, as is `rows`."""

    rows: int  # of a program; the decode form pads to them
    columns: int
    splits: int  # programs that share a tile's channels, in the decode form
    warps: int
    stages: int
    parts: int = 1  # 1: warps share the columns; else as many as warps: they share the channels
    early: bool = False  # in the decode form, begin before the launch before has ended


PREFILL = Tile(rows=64, columns=128, splits=1, warps=4, stages=3)
_PROGRAMS = 4 * 132  # four programs of two warps for each of an H200's processors
# The fastest of `kernels.bench.sweep` on an H200, by the weight's shape.
_SWEPT = {
    (1536, 4096): Tile(DECODE_ROWS, columns=32, splits=8, warps=2, stages=3),
    (32768, 1024): Tile(DECODE_ROWS, columns=64, splits=1, warps=2, stages=3, early=True),
    (40960, 1024): Tile(DECODE_ROWS, columns=64, splits=1, warps=2, stages=3, early=True),
    (8192, 4096): Tile(DECODE_ROWS, columns=16, splits=1, warps=4, stages=3, parts=4),
    (4096, 8192): Tile(DECODE_ROWS, columns=64, splits=8, warps=2, stages=4),
    (4096, 4096): Tile(DECODE_ROWS, columns=64, splits=8, warps=2, stages=3),
    (4096, 2048): Tile(DECODE_ROWS, columns=32, splits=4, warps=2, stages=3),
}


def decode_tile(n: int, k: int) -> Tile:
    """Tile for up to eight rows: narrow and split until there are programs for every processor.

    A function of the weight's shape only; the number of rows must not change the order of sums.
    """
    if (n, k) in _SWEPT:
        return _SWEPT[n, k]
    columns = 64
    programs = triton.cdiv(n, columns)
    steps = triton.cdiv(k, BLOCK)
    splits = 1
    while programs * splits * 2 <= _PROGRAMS and splits * 8 <= steps:
        splits *= 2
    return Tile(rows=DECODE_ROWS, columns=columns, splits=splits, warps=2, stages=3)


def prefill_tile(n: int, groups: int) -> Tile:
    """Tile for more rows than a step's and `groups` of `n` outputs, which it must not straddle."""
    if groups == 1:
        return PREFILL
    return replace(PREFILL, columns=min(PREFILL.columns, n & -n))


def check_codes(weight: Tensor) -> None:
    """Refuse an E4M3 `weight` with codes of NaN, which the kernels would read as 480 (at load).

    Reads `weight` on the host's behalf, so it waits for the device.
    """
    count = int(((weight.view(torch.uint8) & 127) == 127).sum())
    require(count == 0, f"{count} codes of the weight are NaN")


def multiply(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    *,
    groups: int = 1,
    out: Tensor | None = None,
    tile: Tile | None = None,
    workspace: Workspace | None = None,
) -> Tensor:
    """`x` [m, groups k] (BF16 or float32) times `weight` E4M3 [groups n, k] -> [m, groups n].

    Group g of the channels meets rows g n .. (g + 1) n - 1. `scale` E8M0 [ceil(groups n / 128),
    ceil(k / 128)]. Float32 accumulation, one cast to `x.dtype`. Up to eight rows meet in the
    `workspace`, or in a new one. Raises ValueError for operands that do not fit or an `out` that
    shares memory with one.
    """
    total, k = weight.shape
    check(x, weight, scale, groups)
    y = output(out, (x.shape[0], total), x.dtype, x, weight, scale)
    if y.numel() == 0:
        return y
    step = x.shape[0] <= DECODE_ROWS
    chosen = tile or (decode_tile(total, k) if step else prefill_tile(total // groups, groups))
    require(
        groups == 1 or (total // groups) % chosen.columns == 0,
        f"tiles of {chosen.columns} columns would straddle groups of {total // groups}",
    )
    if step:
        _launch_decode(x, weight, scale, groups, y, chosen, workspace)
    else:
        _launch_prefill(x, weight, scale, groups, y, chosen)
    return y


def check(x: Tensor, weight: Tensor, scale: Tensor, groups: int) -> None:
    """Refuse operands that do not fit each other."""
    n, k = weight.shape
    require(weight.dtype == torch.float8_e4m3fn, f"the weight is {weight.dtype}, not E4M3")
    require(
        scale.shape == (triton.cdiv(n, BLOCK), triton.cdiv(k, BLOCK)),
        f"scales {tuple(scale.shape)} do not fit a weight {n} x {k}",
    )
    require(x.dim() == 2 and n % groups == 0, f"{groups} groups do not fit a weight {n} x {k}")
    require_activation("x", x, groups * k)
    require_contiguous(weight=weight, scale=scale)


def _launch_decode(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    groups: int,
    y: Tensor,
    tile: Tile,
    workspace: Workspace | None,
) -> None:
    require(tile.rows >= DECODE_ROWS, f"a decode tile pads to {DECODE_ROWS} rows or more")
    require(tile.parts in (1, tile.warps), f"{tile.parts} parts for {tile.warps} warps")
    (m, n), k = y.shape, weight.shape[1]
    tiles = triton.cdiv(n, tile.columns)
    met = room(workspace, x.device, *needs(tile, n))
    _decode[(tiles, tile.splits)](
        x, weight.view(torch.uint8), scale.view(torch.uint8), y, met.parts, met.arrivals,
        m, x.stride(0), n, k, n // groups,
        **shape_of(tile, n, k), DOT=dot_type(x), EARLY=tile.early,
        num_warps=tile.warps, num_stages=tile.stages, launch_pdl=tile.early,
    )  # fmt: skip


def needs(tile: Tile, n: int) -> tuple[int, int]:
    """Parts and arrivals of a decode launch for `n` columns."""
    if tile.splits == 1:
        return 0, 0
    tiles = triton.cdiv(n, tile.columns)
    return tiles * tile.splits * tile.columns * tile.rows, tiles


def shape_of(tile: Tile, n: int, k: int) -> dict[str, int | bool]:
    """The constants of a decode launch on a weight [n, k]."""
    chunk = triton.cdiv(triton.cdiv(k, BLOCK), tile.splits * tile.parts)
    whole = n % tile.columns == 0 and chunk * tile.splits * tile.parts * BLOCK == k
    return {
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "SPLITS": tile.splits,
        "PARTS": tile.parts,
        "CHUNK": chunk,
        "WHOLE": whole,
    }


def _launch_prefill(
    x: Tensor, weight: Tensor, scale: Tensor, groups: int, y: Tensor, tile: Tile
) -> None:
    (m, n), k = y.shape, weight.shape[1]
    _prefill[(triton.cdiv(n, tile.columns), triton.cdiv(m, tile.rows))](
        x, weight.view(torch.uint8), scale.view(torch.uint8), y, m, x.stride(0), n, k, n // groups,
        ROWS=tile.rows, COLUMNS=tile.columns, STEPS=triton.cdiv(k, BLOCK), DOT=dot_type(x),
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


# Row counts are not specialised on: one row must run the very code that eight rows run.
@triton.jit(do_not_specialize=["m"])
def _decode(  # type: ignore[no-untyped-def]
    x, weight, scale, y, parts, arrivals, m, x_stride, n, k, group_n,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPLITS: tl.constexpr, PARTS: tl.constexpr,
    CHUNK: tl.constexpr, WHOLE: tl.constexpr, DOT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    tile, split = tl.program_id(0), tl.program_id(1)
    if EARLY:
        ahead.wait()
    finish_tile(
        x, weight, scale, y, parts, arrivals, tile, split, m, x_stride, n, k, group_n,
        ROWS, COLUMNS, SPLITS, PARTS, CHUNK, WHOLE, DOT,
    )  # fmt: skip


@triton.jit
def finish_tile(  # type: ignore[no-untyped-def]
    x, weight, scale, y, parts, arrivals, tile, split, m, x_stride, n, k, group_n,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPLITS: tl.constexpr, PARTS: tl.constexpr,
    CHUNK: tl.constexpr, WHOLE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """One program's share of a tile of columns; whoever ends a tile stores it in `y`."""
    total = _sum(
        x, weight, scale, tile, split, m, x_stride, n, k, group_n,
        ROWS, COLUMNS, PARTS, CHUNK, WHOLE, DOT,
    )  # fmt: skip
    ahead.let_next_begin()
    meeting.finish(total, y, parts, arrivals, tile, split, m, n, SPLITS)


@triton.jit
def _sum(  # type: ignore[no-untyped-def]
    x, weight, scale, tile, split, m, x_stride, n, k, group_n,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr, CHUNK: tl.constexpr,
    WHOLE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Products [COLUMNS, ROWS] over CHUNK turns of PARTS blocks; if several, each warp has one."""
    first = tile * COLUMNS
    steps = tl.cdiv(k, 128)
    if PARTS == 1:
        column = (first + tl.arange(0, COLUMNS))[:, None]
        row = tl.arange(0, ROWS)[:, None]
        part = 0
        lane = tl.arange(0, 128)[None, :]
        acc = tl.zeros((COLUMNS, ROWS), tl.float32)
    else:
        column = (first + tl.arange(0, COLUMNS))[None, :, None]
        row = tl.arange(0, ROWS)[None, :, None]
        part = tl.arange(0, PARTS)
        lane = part[:, None, None] * 128 + tl.arange(0, 128)[None, None, :]
        acc = tl.zeros((PARTS, COLUMNS, ROWS), tl.float32)
    x_at = x + row * x_stride + (first // group_n) * k + lane
    w_at = weight + column * k + lane
    s_at = scale + (first // 128) * steps
    step = split * CHUNK * PARTS
    # A turn past the last step adds zeros, whatever their size. Scales are read a turn ahead: they
    # are too small for the pipeline that the rest is in.
    byte = tl.load(s_at + tl.minimum(step + part, steps - 1))
    for _ in range(CHUNK):
        at = step * 128
        if WHOLE:
            w = tl.load(w_at + at)
            xs = tl.load(x_at + at, mask=row < m, other=0.0)
        else:
            w = tl.load(w_at + at, mask=(column < n) & (at + lane < k), other=0)
            xs = tl.load(x_at + at, mask=(row < m) & (at + lane < k), other=0.0)
        size = narrow.e8m0(byte)
        step += PARTS
        byte = tl.load(s_at + tl.minimum(step + part, steps - 1))
        if PARTS == 1:
            right = tl.trans(xs.to(DOT))
        else:
            right = tl.permute(xs.to(DOT), (0, 2, 1))
            size = size[:, None, None]
        acc += tl.dot(narrow.e4m3(w, DOT), right, input_precision="ieee") * size
    if PARTS > 1:
        acc = tl.sum(acc, 0)
    return acc


@triton.jit(do_not_specialize=["m"])
def _prefill(  # type: ignore[no-untyped-def]
    x, weight, scale, y, m, x_stride, n, k, group_n,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * COLUMNS
    column = first + tl.arange(0, COLUMNS)
    row = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, 128)
    x_at = x + row[:, None] * x_stride + (first // group_n) * k + lane[None, :]
    w_at = weight + column[None, :] * k + lane[:, None]
    s_at = scale + (first // 128) * STEPS
    acc = tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range(STEPS):
        at = step * 128
        inside = at + lane < k
        xs = tl.load(x_at + at, mask=(row < m)[:, None] & inside[None, :], other=0.0)
        w = tl.load(w_at + at, mask=(column < n)[None, :] & inside[:, None], other=0)
        size = narrow.e8m0(tl.load(s_at + step))
        acc += tl.dot(xs.to(DOT), narrow.e4m3(w, DOT), input_precision="ieee") * size
    keep = (row < m)[:, None] & (column < n)[None, :]
    tl.store(y + row[:, None] * n + column[None, :], acc.to(y.dtype.element_ty), mask=keep)
