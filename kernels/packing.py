"""Packed rows inside kernels: read as the numbers that plain rows hold, and written from them."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels import narrow
from kernels.packed import CACHE_GROUP, INDEX_GROUP

_CACHE, _INDEX = tl.constexpr(CACHE_GROUP), tl.constexpr(INDEX_GROUP)


@triton.jit
def read_rows(  # type: ignore[no-untyped-def]
    codes, scales, tail, number, there,
    D: tl.constexpr, TAIL: tl.constexpr, SCALES: tl.constexpr, BLOCK: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """Key/value rows `number` [keys] as DOT [keys, BLOCK], zeros where not `there` and past D.

    The last TAIL of D channels have no codes. A line of scales has SCALES bytes.
    """
    KEYS: tl.constexpr = number.shape[0]
    GROUPS: tl.constexpr = BLOCK // _CACHE
    channel, group = tl.arange(0, BLOCK)[None, :], tl.arange(0, GROUPS)[None, :]
    row = tl.where(there, number, 0).to(tl.int64)[:, None]
    code, byte, last = _ask_rows(codes, scales, tail, row, there[:, None], channel, group,
                                 D, TAIL, SCALES)  # fmt: skip
    wide = tl.reshape(narrow.e4m3(code, DOT), (KEYS, GROUPS, _CACHE))
    wide = tl.reshape(wide * narrow.power(byte, DOT)[:, :, None], (KEYS, BLOCK))
    return tl.where(channel < D - TAIL, wide, last.to(DOT))


@triton.jit
def read_chunks(  # type: ignore[no-untyped-def]
    codes, scales, tail, number, there,
    D: tl.constexpr, TAIL: tl.constexpr, SCALES: tl.constexpr, CHUNKS: tl.constexpr,
    WIDTH: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """`read_rows` as [CHUNKS, keys, WIDTH]; the least chunk is part of a group."""
    KEYS: tl.constexpr = number.shape[0]
    GROUPS: tl.constexpr = WIDTH // _CACHE if WIDTH > _CACHE else 1
    chunk = tl.arange(0, CHUNKS)[:, None, None] * WIDTH
    channel = chunk + tl.arange(0, WIDTH)[None, None, :]
    group = chunk // _CACHE + tl.arange(0, GROUPS)[None, None, :]
    row = tl.where(there, number, 0).to(tl.int64)[None, :, None]
    code, byte, last = _ask_rows(codes, scales, tail, row, there[None, :, None], channel, group,
                                 D, TAIL, SCALES)  # fmt: skip
    wide = tl.reshape(narrow.e4m3(code, DOT), (CHUNKS, KEYS, GROUPS, WIDTH // GROUPS))
    wide = tl.reshape(wide * narrow.power(byte, DOT)[:, :, :, None], (CHUNKS, KEYS, WIDTH))
    return tl.where(channel < D - TAIL, wide, last.to(DOT))


@triton.jit
def _ask_rows(  # type: ignore[no-untyped-def]
    codes, scales, tail, row, there, channel, group,
    D: tl.constexpr, TAIL: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    """What is stored of the `row` that are `there`, by `channel` and `group`."""
    CODED: tl.constexpr = D - TAIL
    code = tl.load(codes + row * CODED + channel, mask=there & (channel < CODED), other=0)
    byte = tl.load(scales + row * SCALES + group, mask=there & (group < CODED // _CACHE), other=0)
    kept = there & (channel >= CODED) & (channel < D)
    return code, byte, tl.load(tail + row * TAIL + channel - CODED, mask=kept, other=0.0)


@triton.jit
def write_row(  # type: ignore[no-untyped-def]
    codes, scales, tail, value, w, there, coded, last, SCALES: tl.constexpr, BLOCK: tl.constexpr
):
    """Store the rounded row of `value` [1, BLOCK], float32, as row `w` if it is `there`.

    The first `coded` channels get codes, the `last` after them go to the tail.
    """
    GROUPS: tl.constexpr = BLOCK // _CACHE
    channel = tl.arange(0, BLOCK)[None, :]
    group = tl.arange(0, GROUPS)[None, :]
    grouped = tl.reshape(value, (1, GROUPS, _CACHE))
    power = narrow.power_over(tl.div_rn(tl.maximum(tl.max(tl.abs(grouped), 2), 1e-4), 448.0))
    code = narrow.code_e4m3(grouped * narrow.inverse_power(power)[:, :, None])
    code = tl.reshape(code, (1, BLOCK))
    tl.store(codes + w * coded + channel, code, mask=there & (channel < coded))
    byte = narrow.e8m0_byte(power)
    tl.store(scales + w * SCALES + group, byte, mask=there & (group < coded // _CACHE))
    kept = there & (channel >= coded) & (channel < coded + last)
    tail_at = tail + w * last + channel - coded
    tl.store(tail_at, value.to(tail.dtype.element_ty), mask=kept)


@triton.jit
def ask_keys(  # type: ignore[no-untyped-def]
    codes, scales, key, there, D: tl.constexpr, SCALES: tl.constexpr
):
    """Codes [keys, D / 2] and scales [keys, D / 32] of the index keys `key` that are `there`."""
    row = key.to(tl.int64)[:, None]
    pair = tl.arange(0, D // 2)[None, :]
    group = tl.arange(0, D // _INDEX)[None, :]
    code = tl.load(codes + row * (D // 2) + pair, mask=there[:, None], other=0)
    return code, tl.load(scales + row * SCALES + group, mask=there[:, None], other=0)


@triton.jit
def keys(code, byte, DOT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Index keys [keys, D] of DOT of what `ask_keys` has read."""
    KEYS: tl.constexpr = code.shape[0]
    D: tl.constexpr = 2 * code.shape[1]
    wide = tl.reshape(narrow.e2m1_pairs(code, DOT), (KEYS, D // _INDEX, _INDEX))
    return tl.reshape(wide * narrow.power(byte, DOT)[:, :, None], (KEYS, D))


@triton.jit
def write_key(  # type: ignore[no-untyped-def]
    codes, scales, value, w, there, SCALES: tl.constexpr, D: tl.constexpr
):
    """Store the rounded index key of `value` [1, D], float32, as row `w` if it is `there`."""
    grouped = tl.reshape(value, (1, D // _INDEX, _INDEX))
    largest = tl.maximum(tl.max(tl.abs(grouped), 2), 7.052966104933725e-38)
    power = narrow.power_over(tl.div_rn(largest, 6.0))
    code = narrow.code_e2m1(grouped * narrow.inverse_power(power)[:, :, None])
    low, high = tl.split(tl.reshape(code, (1, D // 2, 2)))
    at = codes + w * (D // 2) + tl.arange(0, D // 2)[None, :]
    tl.store(at, low | high << 4, mask=there)
    group = tl.arange(0, D // _INDEX)[None, :]
    tl.store(scales + w * SCALES + group, narrow.e8m0_byte(power), mask=there)
