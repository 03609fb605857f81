"""Linear layers on FP8 weights: E4M3 with one power-of-two scale per 128 x 128 block.

Up to eight rows take the decode form: the weight tile is the left operand of the tensor cores and
the rows, padded to eight, the right one, so every width costs the same and gives the same bits.
More rows take the prefill form. Either adds up a row's products in steps of 128 channels, times
the block's scale once a step, in an order that depends on the weight's shape alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import narrow
from kernels.launch import (
    DECODE_ROWS,
    dot_type,
    output,
    require,
    require_activation,
    require_contiguous,
)

BLOCK = 128


@dataclass(frozen=True, slots=True)
class Tile:
    """Launch of either form; `columns` is a power of two from 16 to 128, as is `rows`."""

    rows: int  # of a program; the decode form pads to them
    columns: int
    splits: int  # parts of the channels, added up in order by a second kernel when more than one
    warps: int
    stages: int


PREFILL = Tile(rows=64, columns=128, splits=1, warps=4, stages=3)
_PROGRAMS = 2 * 132  # two programs for each of an H200's processors


def decode_tile(n: int, k: int) -> Tile:
    """Tile for up to eight rows: narrow and split until there are programs for every processor.

    A function of the weight's shape only; the number of rows must not change the order of sums.
    """
    columns = 64
    programs = triton.cdiv(n, columns)
    steps = triton.cdiv(k, BLOCK)
    splits = 1
    while programs * splits * 2 <= _PROGRAMS and splits * 8 <= steps:
        splits *= 2
    return Tile(rows=DECODE_ROWS, columns=columns, splits=splits, warps=4, stages=5)


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
) -> Tensor:
    """`x` [m, groups k] (BF16 or float32) times `weight` E4M3 [groups n, k] -> [m, groups n].

    Group g of the channels meets rows g n .. (g + 1) n - 1. `scale` E8M0 [ceil(groups n / 128),
    ceil(k / 128)]. Float32 accumulation, one cast to `x.dtype`. Raises ValueError for operands
    that do not fit or an `out` that shares memory with one.
    """
    total, k = weight.shape
    _check(x, weight, scale, groups)
    y = output(out, (x.shape[0], total), x.dtype, x, weight, scale)
    if y.numel() == 0:
        return y
    chosen = tile or (decode_tile(total, k) if x.shape[0] <= DECODE_ROWS else PREFILL)
    require(
        groups == 1 or (total // groups) % chosen.columns == 0,
        f"tiles of {chosen.columns} columns would straddle groups of {total // groups}",
    )
    if x.shape[0] > DECODE_ROWS:
        _launch_prefill(x, weight, scale, groups, y, chosen)
    else:
        _launch_decode(x, weight, scale, groups, y, chosen)
    return y


def _check(x: Tensor, weight: Tensor, scale: Tensor, groups: int) -> None:
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
    x: Tensor, weight: Tensor, scale: Tensor, groups: int, y: Tensor, tile: Tile
) -> None:
    require(tile.rows >= DECODE_ROWS, f"a decode tile pads to {DECODE_ROWS} rows or more")
    (m, n), k = y.shape, weight.shape[1]
    split = tile.splits > 1
    steps = triton.cdiv(k, BLOCK)
    chunk = triton.cdiv(steps, tile.splits)
    sums = y.new_empty((tile.splits, m, n), dtype=torch.float32) if split else y
    _decode[(triton.cdiv(n, tile.columns), tile.splits)](
        x, weight.view(torch.uint8), scale.view(torch.uint8), sums,
        m, x.stride(0), n, k, n // groups,
        ROWS=tile.rows, COLUMNS=tile.columns, CHUNK=chunk,
        WHOLE=n % tile.columns == 0 and chunk * tile.splits * BLOCK == k, DOT=dot_type(x),
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if split:
        block = 256
        _add[(triton.cdiv(m * n, block),)](sums, y, m * n, SPLITS=tile.splits, BLOCK=block)


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
    x, weight, scale, sums, m, x_stride, n, k, group_n,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr, WHOLE: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * COLUMNS
    split = tl.program_id(1)
    column = first + tl.arange(0, COLUMNS)
    row = tl.arange(0, ROWS)
    lane = tl.arange(0, 128)
    steps = tl.cdiv(k, 128)
    x_at = x + row[:, None] * x_stride + (first // group_n) * k + lane[None, :]
    w_at = weight + column[:, None] * k + lane[None, :]
    s_at = scale + (first // 128) * steps
    acc = tl.zeros((COLUMNS, ROWS), tl.float32)
    for turn in range(CHUNK):
        step = split * CHUNK + turn
        at = step * 128
        if WHOLE:
            w = tl.load(w_at + at)
            xs = tl.load(x_at + at, mask=(row < m)[:, None], other=0.0)
        else:
            inside = at + lane < k
            w = tl.load(w_at + at, mask=(column < n)[:, None] & inside[None, :], other=0)
            xs = tl.load(x_at + at, mask=(row < m)[:, None] & inside[None, :], other=0.0)
        # A turn past the last step adds zeros, whatever their size.
        size = narrow.e8m0(tl.load(s_at + tl.minimum(step, steps - 1)))
        acc += tl.dot(narrow.e4m3(w, DOT), tl.trans(xs.to(DOT)), input_precision="ieee") * size
    keep = (column < n)[:, None] & (row < m)[None, :]
    y_at = sums + split * m * n + row[None, :] * n + column[:, None]
    tl.store(y_at, acc.to(sums.dtype.element_ty), mask=keep)


@triton.jit(do_not_specialize=["count"])
def _add(sums, y, count, SPLITS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for split in range(SPLITS):
        total += tl.load(sums + split * count + at, mask=at < count, other=0.0)
    tl.store(y + at, total.to(y.dtype.element_ty), mask=at < count)


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
