"""The narrow formats inside kernels: the assembly for a GPU and the plain form, code by code."""

from __future__ import annotations

import math

import gates
import pytest
import torch

gates.interpreter()

import ptx  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from kernels import narrow  # noqa: E402
from kernels.oracle.rounding import E2M1_VALUES  # noqa: E402

E2M1 = E2M1_VALUES + tuple(-v for v in E2M1_VALUES)


def word(codes: list[int]) -> int:
    return int.from_bytes(bytes(codes), "little")


def same(got: list[float], want: list[float]) -> bool:
    return got == want and [math.copysign(1, v) for v in got] == [math.copysign(1, v) for v in want]


@pytest.mark.parametrize("first", range(0, 256, 4))
def test_the_assembly_reads_every_e4m3_code(first: int) -> None:
    codes = list(range(first, first + 4))
    low, high = ptx.run(narrow._E4M3_ASM.value, 2, [word(codes)])
    want = torch.tensor(codes, dtype=torch.uint8).view(torch.float8_e4m3fn).float().tolist()
    pairs = zip(want, codes, strict=True)
    want = [math.copysign(480.0, 127.5 - c) if math.isnan(v) else v for v, c in pairs]
    assert same(ptx.lanes(low) + ptx.lanes(high), want)


def e2m1_word(codes: list[int]) -> int:
    """A bank's word of eight codes, which has each bit at its place."""
    places = zip(codes, narrow.E2M1_BITS, strict=True)
    return sum((code >> i & 1) << to for code, bits in places for i, to in enumerate(bits))


def e2m1_values(codes: list[int], bytes_: tuple[int, int]) -> list[float]:
    """The numbers of a word's codes: even ones times the first scale, odd ones times the other."""
    shift = 127 + narrow.E2M1_SHIFT
    return [E2M1[code] * math.ldexp(1.0, bytes_[i % 2] - shift) for i, code in enumerate(codes)]


def test_a_word_has_every_bit_once() -> None:
    assert sorted(bit for bits in narrow.E2M1_BITS for bit in bits) == list(range(32))


SCALES = [narrow.E2M1_SCALES, narrow.E2M1_SCALES[::-1], (120, 127)]


@pytest.mark.parametrize("bytes_", SCALES)
@pytest.mark.parametrize("place", range(8))
def test_the_assembly_reads_every_e2m1_code_at_every_place(
    place: int, bytes_: tuple[int, int]
) -> None:
    scale = bytes_[0] + narrow.E2M1_BIAS | bytes_[1] + narrow.E2M1_BIAS << 8
    for code in range(16):
        codes = [[(code + 5 * (i - place)) % 16 for i in range(8)] for code in (code, code + 7)]
        given = [*map(e2m1_word, codes), ptx.pair(scale, scale)]
        got = [ptx.lanes(r) for r in ptx.run(narrow._E2M1_ASM.value, 8, given)]
        for half in range(2):
            assert same([pair[half] for pair in got], e2m1_values(codes[half], bytes_))


@triton.jit
def _read_e2m1(words, scales, out):  # type: ignore[no-untyped-def]
    at = tl.arange(0, 16)
    wide = narrow.e2m1(tl.load(words + at), tl.load(scales + at), tl.float32)
    tl.store(out + at[:, None] * 8 + tl.arange(0, 8)[None, :], tl.reshape(wide, (16, 8)))


@pytest.mark.parametrize("bytes_", SCALES)
def test_the_plain_form_reads_every_e2m1_code_at_every_place(bytes_: tuple[int, int]) -> None:
    codes = [[(code + 5 * i) % 16 for i in range(8)] for code in range(16)]
    words = torch.tensor([e2m1_word(row) for row in codes]).to(torch.uint32).view(torch.int32)
    biased = torch.tensor([bytes_] * 16).add(narrow.E2M1_BIAS).to(torch.uint8)
    out = torch.empty(16, 8)
    _read_e2m1[(1,)](words, biased.view(torch.int16)[:, 0].contiguous(), out)
    assert same(out.flatten().tolist(), [v for row in codes for v in e2m1_values(row, bytes_)])


@triton.jit
def _read_e8m0(bytes_, out):  # type: ignore[no-untyped-def]
    at = tl.arange(0, 256)
    tl.store(out + at, narrow.e8m0(tl.load(bytes_ + at)))


def test_every_exponent_but_nan_is_its_power_of_two() -> None:
    out = torch.empty(256)
    _read_e8m0[(1,)](torch.arange(256).to(torch.uint8), out)
    assert out[:255].double().tolist() == [2.0 ** (byte - 127) for byte in range(255)]
