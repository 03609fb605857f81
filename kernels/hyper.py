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

from kernels.launch import interpreted, require, require_activation, require_contiguous
from kernels.norm import inverse_size

_LINES = 32  # room for the sums of a slice: (2 + m) m mixing logits and the sum of squares


class Entry(NamedTuple):
    """A sublayer's normalised input and what its output needs to be written back."""

    x: Tensor  # [rows, d] of the streams' dtype
    post: Tensor  # float32 [rows, m]
    comb: Tensor  # float32 [rows, m, m]


class Write(NamedTuple):
    """What the sublayer before leaves to the streams."""

    output: Tensor  # [rows, d], or its float32 parts [rows, p, d]
    post: Tensor  # float32 [rows, m]
    comb: Tensor  # float32 [rows, m, m]
    taps: Tensor | None  # [rows, d]: gets the mean of the streams


@dataclass(frozen=True, slots=True)
class Tile:
    """Launch of the first kernel, and warps of the second."""

    channels: int  # of each stream in a slice; a power of two
    warps: int
    read_warps: int


TILE = Tile(channels=64, warps=4, read_warps=4)


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

    `streams` BF16 or float32, contiguous or one stream expanded to m; `fn` [(2 + m) m, m d], `base`
    [(2 + m) m], `scale` [3] float32; `norm` [d], the weight of the input's normalisation. m is 2 or
    4. Raises ValueError for operands that do not fit.
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
    taps: Tensor | None = None,
    tile: Tile = TILE,
) -> tuple[Tensor, Entry]:
    """New streams, where k gets post_k output + sum_j comb_jk stream_j, and the next `enter`.

    `output` [rows, d] of the streams' dtype, or its float32 parts [rows, p, d], which are added in
    order and rounded once; `post` [rows, m] and `comb` [rows, m, m] float32. `taps` [rows, d] of
    the streams' dtype, whose rows may lie apart, gets the mean of the new streams.
    """
    _check(streams, fn, base, scale, norm, 3)
    written, sums = _project(streams, Write(output, post, comb, taps), fn, tile)
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
    taps: Tensor | None = None,
    tile: Tile = TILE,
) -> tuple[Tensor, Tensor, Tensor]:
    """New streams as in `advance`, then the model's output [rows, d], as read and normalised.

    `fn` [m, m d], `base` [m], `scale` [1] float32: one weight a stream, nothing to balance.
    """
    _check(streams, fn, base, scale, norm, 1)
    written, sums = _project(streams, Write(output, post, comb, taps), fn, tile)
    rows, m, d = written.shape
    vector, x = written.new_empty((rows, d)), written.new_empty((rows, d))
    if rows:
        slices = sums.shape[1]
        _finish[(rows, 1)](
            written, sums, base, scale, norm, x, x, x, vector,
            m * d, d, d, slices, norm_eps, eps, M=m, LINES=m,
            ROOM=_LINES, SLICES=triton.next_power_of_2(slices), STEPS=0, VECTOR=True,
            BLOCK=triton.next_power_of_2(d), COMPILED=not interpreted(), num_warps=tile.read_warps,
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
    require(
        streams.is_contiguous() or streams.stride()[1:] == (0, 1),
        "streams are neither contiguous nor one stream expanded",
    )
    require_contiguous(fn=fn, base=base, scale=scale, norm=norm)


def _project(streams: Tensor, write: Write | None, fn: Tensor, tile: Tile) -> tuple[Tensor, Tensor]:
    """Streams after `write`, and float32 sums [rows, slices, lines] of their slices."""
    rows, m, d = streams.shape
    if write is not None:
        _check_write(write, streams)
    slices = triton.cdiv(d, tile.channels)
    sums = streams.new_empty((rows, slices, _LINES), dtype=torch.float32)
    written = streams if write is None else streams.new_empty((rows, m, d))
    if rows:
        output, post, comb, taps = (streams, sums, sums, None) if write is None else write
        _multiply[(slices, rows)](
            streams, output, post, comb, fn, written, sums, streams if taps is None else taps,
            *streams.stride()[:2], 0 if taps is None else taps.stride(0), d, slices,
            M=m, LINES=fn.shape[0], ROOM=_LINES, WRITE=write is not None,
            PARTS=output.shape[1] if output.dim() == 3 and write is not None else 0,
            TAPS=taps is not None, CHANNELS=tile.channels, num_warps=tile.warps,
        )  # fmt: skip
    return written, sums


def _check_write(write: Write, streams: Tensor) -> None:
    rows, m, d = streams.shape
    output, post, comb, taps = write
    parts = output.dim() == 3 and output.dtype == torch.float32
    fits = output.shape == (rows, output.shape[1], d) if parts else output.shape == (rows, d)
    require(fits, f"the output {output.dtype} {tuple(output.shape)} does not fit the streams")
    require_activation("output", output)
    require(
        post.shape == (rows, m) and comb.shape == (rows, m, m),
        "the weights of the write do not fit the streams",
    )
    require(post.dtype == comb.dtype == torch.float32, "post, comb: not float32")
    require_contiguous(output=output, post=post, comb=comb)
    if taps is not None:
        require(taps.shape == (rows, d), "the taps do not fit the streams")
        require(taps.dtype == streams.dtype, f"taps are {taps.dtype}, not {streams.dtype}")
        require_activation("taps", taps)


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
            streams, sums, base, scale, norm, x, post, comb, x,
            *streams.stride()[:2], d, slices, norm_eps, eps, M=m, LINES=base.shape[0],
            ROOM=_LINES, SLICES=triton.next_power_of_2(slices),
            STEPS=iterations, VECTOR=False, BLOCK=triton.next_power_of_2(d),
            COMPILED=not interpreted(), num_warps=tile.read_warps,
        )  # fmt: skip
    return Entry(x, post, comb)


@triton.jit
def _multiply(  # type: ignore[no-untyped-def]
    streams, output, post, comb, fn, written, sums, taps,
    row_stride, stream_stride, taps_stride, d, slices,
    M: tl.constexpr, LINES: tl.constexpr, ROOM: tl.constexpr, WRITE: tl.constexpr,
    PARTS: tl.constexpr, TAPS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Line `LINES` of the sums is the slice's sum of squares, later ones are zero.

    Whatever does not depend on a store is loaded before the first one, which ends all overlap: the
    compiler cannot know that they do not meet.
    """
    row = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    line = tl.arange(0, ROOM)
    inside = at < d
    there = (line < LINES)[:, None] & inside[None, :]
    fn_at = fn + line[:, None] * (M * d) + at[None, :]
    weights = tl.tuple(())
    olds = tl.tuple(())
    for k in tl.static_range(M):
        weights += (tl.load(fn_at + k * d, mask=there, other=0.0),)
        old = tl.load(streams + row * row_stride + k * stream_stride + at, mask=inside, other=0.0)
        olds += (old.to(tl.float32),)
    news = olds
    if WRITE:
        news = _new(output, post, comb, olds, row, at, inside, d, M, PARTS, written)
    acc = tl.zeros((ROOM, CHANNELS), tl.float32)
    for k in tl.static_range(M):
        new = news[k][None, :]
        acc += tl.where((line == LINES)[:, None], new, weights[k]) * new
    acc = tl.sum(acc, 1)
    tl.store(sums + (row * slices + tl.program_id(0)) * ROOM + line, acc)
    if WRITE:
        mean = tl.zeros((CHANNELS,), tl.float32)
        for k in tl.static_range(M):
            stored = news[k].to(written.dtype.element_ty)
            tl.store(written + (row * M + k) * d + at, stored, mask=inside)
            mean += news[k]
        if TAPS:
            mean = (mean / M).to(taps.dtype.element_ty)
            tl.store(taps + row * taps_stride + at, mean, mask=inside)


@triton.jit
def _new(  # type: ignore[no-untyped-def]
    output, post, comb, olds, row, at, inside, d,
    M: tl.constexpr, PARTS: tl.constexpr, written,
):  # fmt: skip
    """The streams after a write, float32 numbers of the dtype of `written`."""
    if PARTS > 0:
        total = tl.zeros_like(olds[0])
        for part in tl.static_range(PARTS):
            total += tl.load(output + (row * PARTS + part) * d + at, mask=inside, other=0.0)
        total = total.to(written.dtype.element_ty).to(tl.float32)
    else:
        total = tl.load(output + row * d + at, mask=inside, other=0.0).to(tl.float32)
    news = tl.tuple(())
    for k in tl.static_range(M):
        value = total * tl.load(post + row * M + k)
        for j in tl.static_range(M):
            value += tl.load(comb + (row * M + j) * M + k) * olds[j]
        news += (value.to(written.dtype.element_ty).to(tl.float32),)
    return news


@triton.jit
def _totals(sums, row, slices, ROOM: tl.constexpr, SLICES: tl.constexpr):  # type: ignore[no-untyped-def]
    """All lines [ROOM] of a row, added up over the slices."""
    part = tl.arange(0, SLICES)
    at = (row * slices + part[:, None]) * ROOM + tl.arange(0, ROOM)[None, :]
    return tl.sum(tl.load(sums + at, mask=(part < slices)[:, None], other=0.0), 0)


@triton.jit
def _line(totals, index, ROOM: tl.constexpr):  # type: ignore[no-untyped-def]
    """One line as a scalar: what follows is arithmetic inside a thread, without exchange."""
    return tl.sum(tl.where(tl.arange(0, ROOM) == index, totals, 0.0), 0)


@triton.jit
def _gate(z):  # type: ignore[no-untyped-def]
    return 1.0 / (1.0 + tl.exp(-z))


@triton.jit
def _inverse(x, COMPILED: tl.constexpr):  # type: ignore[no-untyped-def]
    """1 / x to the last bit or two: a whole division takes longer than all else in a step."""
    if COMPILED:
        inverse = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        inverse = 1.0 / x
    return inverse


@triton.jit
def _scaled(c, own, other, eps, M: tl.constexpr, STEP: tl.constexpr, COMPILED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Factors of lines `STEP` apart (rows: M, columns: 1) that bring their sums to one.

    `own` are the lines' factors so far, `other` those of the lines across.
    """
    ACROSS: tl.constexpr = M + 1 - STEP
    scaled = tl.tuple(())
    for i in tl.static_range(M):
        total = c[i * STEP] * other[0] + c[i * STEP + ACROSS] * other[1]
        if M == 4:
            more = c[i * STEP + 2 * ACROSS] * other[2] + c[i * STEP + 3 * ACROSS] * other[3]
            total += more
        scaled += (own[i] * _inverse(own[i] * total + eps, COMPILED),)
    return scaled


@triton.jit
def _balance(logits, eps, M: tl.constexpr, STEPS: tl.constexpr, COMPILED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sinkhorn: rows and columns of M x M scalars in turn; the softmax is the first row step.

    The matrix stays what the softmax made it; the steps move a factor of each row and column.
    """
    c = tl.tuple(())
    ones = tl.tuple(())
    for i in tl.static_range(M):
        top = logits[i * M]
        for j in tl.static_range(1, M):
            top = tl.maximum(top, logits[i * M + j])
        total = tl.exp(logits[i * M] - top)
        for j in tl.static_range(1, M):
            total += tl.exp(logits[i * M + j] - top)
        for j in tl.static_range(M):
            c += (tl.exp(logits[i * M + j] - top) / total + eps,)
        ones += (tl.full((), 1.0, tl.float32),)
    rows = ones
    columns = _scaled(c, ones, rows, eps, M, 1, COMPILED)
    for _ in range(STEPS - 1):
        rows = _scaled(c, rows, columns, eps, M, M, COMPILED)
        columns = _scaled(c, columns, rows, eps, M, 1, COMPILED)
    balanced = tl.tuple(())
    for i in tl.static_range(M):
        for j in tl.static_range(M):
            balanced += (c[i * M + j] * rows[i] * columns[j],)
    return balanced


@triton.jit
def _finish(  # type: ignore[no-untyped-def]
    streams, sums, base, scale, norm, x, post, comb, vector,
    row_stride, stream_stride, d, slices, norm_eps, eps,
    M: tl.constexpr, LINES: tl.constexpr, ROOM: tl.constexpr, SLICES: tl.constexpr,
    STEPS: tl.constexpr, VECTOR: tl.constexpr, BLOCK: tl.constexpr, COMPILED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    if tl.program_id(1) == 0:
        at = tl.arange(0, BLOCK)
        h_at = streams + row * row_stride + at
        h = tl.tuple(())
        for k in tl.static_range(M):
            h += (tl.load(h_at + k * stream_stride, mask=at < d, other=0.0),)
        weight = tl.load(norm + at, mask=at < d, other=0.0)
        totals = _totals(sums, row, slices, ROOM, SLICES)
        size = 1.0 / tl.sqrt_rn(_line(totals, LINES, ROOM) / (M * d) + norm_eps)
        u = tl.zeros((BLOCK,), tl.float32)
        for k in tl.static_range(M):
            z = _line(totals, k, ROOM) * size * tl.load(scale) + tl.load(base + k)
            u += (_gate(z) + eps) * h[k].to(tl.float32)
        u = u.to(x.dtype.element_ty)
        if VECTOR:
            tl.store(vector + row * d + at, u, mask=at < d)
        wide = u.to(tl.float32)
        wide *= inverse_size(wide, d, norm_eps)
        tl.store(x + row * d + at, (wide * weight).to(x.dtype.element_ty), mask=at < d)
    else:
        totals = _totals(sums, row, slices, ROOM, SLICES)
        size = 1.0 / tl.sqrt_rn(_line(totals, LINES, ROOM) / (M * d) + norm_eps)
        post_size, comb_size = size * tl.load(scale + 1), size * tl.load(scale + 2)
        logits = tl.tuple(())
        for i in tl.static_range(M * M):
            logits += (_line(totals, 2 * M + i, ROOM) * comb_size + tl.load(base + 2 * M + i),)
        gates = tl.tuple(())
        for k in tl.static_range(M):
            z = _line(totals, M + k, ROOM) * post_size + tl.load(base + M + k)
            gates += (2.0 * _gate(z),)
        c = _balance(logits, eps, M, STEPS, COMPILED)
        for k in tl.static_range(M):
            tl.store(post + row * M + k, gates[k])
        for i in tl.static_range(M * M):
            tl.store(comb + row * M * M + i, c[i])
