"""Hyper-connections: a sublayer's output meets the residual streams, the next one reads them.

Two launches from the end of one sublayer to the start of the next. The first writes the streams and
multiplies every slice of channels by the mixing matrix while it is at hand; the second adds up the
slices in order, balances the mixing weights, and reads and normalises the next input. Sinkhorn's
steps run in programs of their own, beside those that read: only the sublayer's end waits for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import require, require_activation, require_contiguous
from kernels.norm import inverse_size

_LINES = 32  # room for the sums of a slice: (2 + m) m mixing logits and the sum of squares


class Entry(NamedTuple):
    """A sublayer's normalised input and what its output needs to be written back."""

    x: Tensor  # [rows, d] of the streams' dtype
    post: Tensor  # float32 [rows, m]
    comb: Tensor  # float32 [rows, m, m]


class Write(NamedTuple):
    """What the sublayer before leaves to the streams."""

    output: Tensor  # [rows, d]
    post: Tensor  # float32 [rows, m]
    comb: Tensor  # float32 [rows, m, m]


@dataclass(frozen=True, slots=True)
class Tile:
    """Launch of the first kernel, and warps of the second."""

    channels: int  # of each stream in a slice; a power of two
    warps: int
    read_warps: int


TILE = Tile(channels=32, warps=1, read_warps=8)


def enter(
    streams: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    norm: Tensor,
    *,
    iterations: int,
    norm_eps: float,
    eps: float,
    tile: Tile = TILE,
) -> Entry:
    """What a sublayer reads from `streams` [rows, m, d], and how it will write to them.

    `streams` BF16 or float32; `fn` [(2 + m) m, m d], `base` [(2 + m) m], `scale` [3] float32;
    `norm` [d], the weight of the input's normalisation. m is 2 or 4. Raises ValueError for operands
    that do not fit.
    """
    _check(streams, fn, base, scale, norm, 3)
    return _read(streams, _project(streams, None, fn, tile)[1], base, scale, norm,
                 iterations, norm_eps, eps, tile)  # fmt: skip


def advance(
    streams: Tensor,
    output: Tensor,
    post: Tensor,
    comb: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    norm: Tensor,
    *,
    iterations: int,
    norm_eps: float,
    eps: float,
    tile: Tile = TILE,
) -> tuple[Tensor, Entry]:
    """New streams, where k gets post_k output + sum_j comb_jk stream_j, and the next `enter`.

    `output` [rows, d] of the streams' dtype; `post` [rows, m] and `comb` [rows, m, m] float32.
    """
    _check(streams, fn, base, scale, norm, 3)
    written, sums = _project(streams, Write(output, post, comb), fn, tile)
    return written, _read(written, sums, base, scale, norm, iterations, norm_eps, eps, tile)


def finish(
    streams: Tensor,
    output: Tensor,
    post: Tensor,
    comb: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    norm: Tensor,
    *,
    norm_eps: float,
    eps: float,
    tile: Tile = TILE,
) -> tuple[Tensor, Tensor, Tensor]:
    """New streams as in `advance`, then the model's output [rows, d], as read and normalised.

    `fn` [m, m d], `base` [m], `scale` [1] float32: one weight a stream, nothing to balance.
    """
    _check(streams, fn, base, scale, norm, 1)
    written, sums = _project(streams, Write(output, post, comb), fn, tile)
    rows, m, d = written.shape
    vector, x = written.new_empty((rows, d)), written.new_empty((rows, d))
    if rows:
        slices = sums.shape[1]
        _finish[(rows, 1)](
            written, sums, base, scale, norm, x, x, x, vector, d, slices, norm_eps, eps,
            M=m, LINES=m, SLICES=triton.next_power_of_2(slices), STEPS=0, VECTOR=True,
            BLOCK=triton.next_power_of_2(d), num_warps=tile.read_warps,
        )  # fmt: skip
    return written, vector, x


def _check(
    streams: Tensor, fn: Tensor, base: Tensor, scale: Tensor, norm: Tensor, scales: int
) -> None:
    require(streams.dim() == 3, f"streams {tuple(streams.shape)} are not [rows, m, d]")
    _, m, d = streams.shape
    lines = (2 + m) * m if scales == 3 else m
    require(m in (2, 4), f"{m} streams are neither 2 nor 4")
    require_activation("streams", streams)
    require(
        fn.shape == (lines, m * d) and base.shape == (lines,) and scale.shape == (scales,),
        f"mixing weights {tuple(fn.shape)} do not fit {m} streams of {d}",
    )
    require(norm.shape == (d,), f"the norm's weight does not fit {d} channels")
    require(
        fn.dtype == base.dtype == scale.dtype == torch.float32, "mixing weights are not float32"
    )
    require_contiguous(streams=streams, fn=fn, base=base, scale=scale, norm=norm)


def _project(streams: Tensor, write: Write | None, fn: Tensor, tile: Tile) -> tuple[Tensor, Tensor]:
    """Streams after `write`, and float32 sums [rows, slices, lines] of their slices."""
    rows, m, d = streams.shape
    if write is not None:
        require(write.output.shape == (rows, d), "the output does not fit the streams")
        require(
            write.post.shape == (rows, m) and write.comb.shape == (rows, m, m),
            "the weights of the write do not fit the streams",
        )
        require(write.post.dtype == write.comb.dtype == torch.float32, "post, comb: not float32")
        require_activation("output", write.output)
        require_contiguous(output=write.output, post=write.post, comb=write.comb)
    slices = triton.cdiv(d, tile.channels)
    sums = streams.new_empty((rows, slices, _LINES), dtype=torch.float32)
    written = streams if write is None else torch.empty_like(streams)
    if rows:
        output, post, comb = (streams, sums, sums) if write is None else write
        _multiply[(slices, rows)](
            streams, output, post, comb, fn, written, sums, d, slices,
            M=m, LINES=fn.shape[0], ROOM=_LINES, WRITE=write is not None,
            CHANNELS=tile.channels, num_warps=tile.warps,
        )  # fmt: skip
    return written, sums


def _read(
    streams: Tensor, sums: Tensor, base: Tensor, scale: Tensor, norm: Tensor,
    iterations: int, norm_eps: float, eps: float, tile: Tile,
) -> Entry:  # fmt: skip
    rows, m, d = streams.shape
    x = streams.new_empty((rows, d))
    post = streams.new_empty((rows, m), dtype=torch.float32)
    comb = streams.new_empty((rows, m, m), dtype=torch.float32)
    if rows:
        slices = sums.shape[1]
        _finish[(rows, 2)](
            streams, sums, base, scale, norm, x, post, comb, x, d, slices, norm_eps, eps,
            M=m, LINES=base.shape[0], SLICES=triton.next_power_of_2(slices),
            STEPS=iterations, VECTOR=False, BLOCK=triton.next_power_of_2(d),
            num_warps=tile.read_warps,
        )  # fmt: skip
    return Entry(x, post, comb)


@triton.jit
def _multiply(  # type: ignore[no-untyped-def]
    streams, output, post, comb, fn, written, sums, d, slices,
    M: tl.constexpr, LINES: tl.constexpr, ROOM: tl.constexpr, WRITE: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """Line `LINES` of the sums is the slice's sum of squares, later ones are zero."""
    row = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    line = tl.arange(0, ROOM)
    acc = tl.zeros((ROOM,), tl.float32)
    squares = tl.zeros((CHANNELS,), tl.float32)
    h_at = streams + row * M * d + at
    for k in tl.static_range(M):
        if WRITE:
            value = tl.load(output + row * d + at, mask=at < d, other=0.0).to(tl.float32)
            value *= tl.load(post + row * M + k)
            for j in tl.static_range(M):
                old = tl.load(h_at + j * d, mask=at < d, other=0.0).to(tl.float32)
                value += tl.load(comb + (row * M + j) * M + k) * old
            stored = value.to(written.dtype.element_ty)
            tl.store(written + (row * M + k) * d + at, stored, mask=at < d)
            value = stored.to(tl.float32)
        else:
            value = tl.load(h_at + k * d, mask=at < d, other=0.0).to(tl.float32)
        there = (line < LINES)[:, None] & (at < d)[None, :]
        weight = tl.load(fn + line[:, None] * (M * d) + k * d + at[None, :], mask=there, other=0.0)
        acc += tl.sum(weight * value[None, :], 1)
        squares += value * value
    acc = tl.where(line == LINES, tl.sum(squares, 0), acc)
    tl.store(sums + (row * slices + tl.program_id(0)) * ROOM + line, acc)


@triton.jit
def _sum_of(  # type: ignore[no-untyped-def]
    sums, first, slices, COUNT: tl.constexpr, SLICES: tl.constexpr
):
    """Lines first .. first + COUNT, added up over the slices."""
    part = tl.arange(0, SLICES)
    at = part[:, None] * 32 + first + tl.arange(0, COUNT)[None, :]
    return tl.sum(tl.load(sums + at, mask=(part < slices)[:, None], other=0.0), 0)


@triton.jit
def _gate(  # type: ignore[no-untyped-def]
    sums, base, scale, first, which, size, slices, COUNT: tl.constexpr, SLICES: tl.constexpr
):
    raw = _sum_of(sums, first, slices, COUNT, SLICES) * size
    z = raw * tl.load(scale + which) + tl.load(base + first + tl.arange(0, COUNT))
    return 1.0 / (1.0 + tl.exp(-z))


@triton.jit
def _balance(logits, eps, M: tl.constexpr, STEPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sinkhorn: rows and columns of an M x M matrix in turn; the softmax is the first row step."""
    c = tl.exp(logits - tl.max(logits, 1)[:, None])
    c = c / tl.sum(c, 1)[:, None] + eps
    c = c / (tl.sum(c, 0) + eps)[None, :]
    for _ in range(STEPS - 1):
        c = c / (tl.sum(c, 1) + eps)[:, None]
        c = c / (tl.sum(c, 0) + eps)[None, :]
    return c


@triton.jit
def _finish(  # type: ignore[no-untyped-def]
    streams, sums, base, scale, norm, x, post, comb, vector, d, slices, norm_eps, eps,
    M: tl.constexpr, LINES: tl.constexpr, SLICES: tl.constexpr,
    STEPS: tl.constexpr, VECTOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    sums += row * slices * 32
    squares = tl.sum(_sum_of(sums, LINES, slices, 1, SLICES), 0)
    size = 1.0 / tl.sqrt_rn(squares / (M * d) + norm_eps)
    line = tl.arange(0, M)
    if tl.program_id(1) == 0:
        pre = _gate(sums, base, scale, 0, 0, size, slices, M, SLICES) + eps
        at = tl.arange(0, BLOCK)
        there = (line < M)[:, None] & (at < d)[None, :]
        h_at = streams + row * M * d + line[:, None] * d + at[None, :]
        h = tl.load(h_at, mask=there, other=0.0).to(tl.float32)
        u = tl.sum(pre[:, None] * h, 0).to(x.dtype.element_ty)
        if VECTOR:
            tl.store(vector + row * d + at, u, mask=at < d)
        wide = u.to(tl.float32)
        wide *= inverse_size(wide, d, norm_eps)
        wide *= tl.load(norm + at, mask=at < d, other=0.0).to(tl.float32)
        tl.store(x + row * d + at, wide.to(x.dtype.element_ty), mask=at < d)
    else:
        tl.store(
            post + row * M + line, 2.0 * _gate(sums, base, scale, M, 1, size, slices, M, SLICES)
        )
        flat = tl.arange(0, M * M)
        logits = _sum_of(sums, 2 * M, slices, M * M, SLICES) * size * tl.load(scale + 2)
        logits = tl.reshape(logits + tl.load(base + 2 * M + flat), (M, M))
        c_at = comb + row * M * M + line[:, None] * M + line[None, :]
        tl.store(c_at, _balance(logits, eps, M, STEPS))
