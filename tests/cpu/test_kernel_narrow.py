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

from kernels import mxfp4, narrow  # noqa: E402
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


def e2m1_words(codes: list[int]) -> tuple[int, int]:
    """A bank's pair of words of sixteen codes, pair after pair."""
    packed = [codes[i + 1] << 4 | codes[i] for i in range(0, 16, 2)]
    # Row 0 or 8 of a tile, the first lane's channels 4 t + 2 a and + 1 of the first two groups.
    bytes_ = torch.zeros(1, 16, 128, dtype=torch.uint8)
    for pair, byte in enumerate(packed):
        bytes_[0, pair % 2 * 8, pair // 2 % 2 * 8 + pair // 4] = byte
    bank = mxfp4.pack(bytes_, torch.full((1, 16, 8), 127, dtype=torch.uint8))
    first, second = bank.codes[0, 0, 0, 0, 0, :2].tolist()
    return first % 2**32, second % 2**32


def e2m1_values(codes: list[int], bytes_: tuple[int, int]) -> list[float]:
    """The numbers of two words' codes: even pairs times one scale, odd ones times the other."""
    shift = 127 + narrow.E2M1_SHIFT
    sizes = [math.ldexp(1.0, byte - shift) for byte in bytes_]
    return [E2M1[code] * sizes[i // 2 % 2] for i, code in enumerate(codes)]


def test_every_bit_of_a_pair_of_words_is_a_code() -> None:
    assert e2m1_words([0] * 16) == (0, 0)
    single = [
        e2m1_words([0] * i + [1 << bit] + [0] * (15 - i)) for i in range(16) for bit in range(4)
    ]
    bits = [first | second << 32 for first, second in single]
    assert sorted(bits) == [1 << bit for bit in range(64)]


SCALES = [narrow.E2M1_SCALES, narrow.E2M1_SCALES[::-1], (120, 127)]


@pytest.mark.parametrize("bytes_", SCALES)
@pytest.mark.parametrize("place", range(16))
def test_the_assembly_reads_every_e2m1_code_at_every_place(
    place: int, bytes_: tuple[int, int]
) -> None:
    scale = bytes_[0] + narrow.E2M1_BIAS | bytes_[1] + narrow.E2M1_BIAS << 8
    for code in range(16):
        codes = [(code + 5 * (i - place)) % 16 for i in range(16)]
        got = ptx.run(narrow._E2M1_ASM.value, 16, [*e2m1_words(codes), scale])
        assert same([ptx.lanes(half)[0] for half in got], e2m1_values(codes, bytes_))


@triton.jit
def _read_e2m1(words, scales, out):  # type: ignore[no-untyped-def]
    at = tl.arange(0, 16)
    first, second = tl.load(words + 2 * at), tl.load(words + 2 * at + 1)
    wide = narrow.e2m1(first, second, tl.load(scales + at), tl.float32)
    # [16, code of a pair, a, b, c] with pair 4 a + 2 b + c
    wide = tl.permute(wide, (0, 2, 3, 4, 1))
    tl.store(out + at[:, None] * 16 + tl.arange(0, 16)[None, :], tl.reshape(wide, (16, 16)))


@pytest.mark.parametrize("bytes_", SCALES)
def test_the_plain_form_reads_every_e2m1_code_at_every_place(bytes_: tuple[int, int]) -> None:
    codes = [[(code + 5 * i) % 16 for i in range(16)] for code in range(16)]
    words = torch.tensor([e2m1_words(row) for row in codes]).to(torch.uint32).view(torch.int32)
    biased = torch.tensor([bytes_] * 16).add(narrow.E2M1_BIAS).to(torch.uint8)
    out = torch.empty(16, 16)
    _read_e2m1[(1,)](words, biased.view(torch.int16)[:, 0].contiguous(), out)
    assert same(out.flatten().tolist(), [v for row in codes for v in e2m1_values(row, bytes_)])


@pytest.mark.parametrize("first", range(0, 256, 4))
def test_the_assembly_reads_every_byte_of_two_e2m1_codes(first: int) -> None:
    bytes_ = list(range(first, first + 4))
    a, b, c, d = map(ptx.lanes, ptx.run(narrow._E2M1_PAIRS_ASM.value, 4, [word(bytes_)]))
    assert same(a + b, [E2M1[byte & 15] for byte in bytes_])
    assert same(c + d, [E2M1[byte >> 4] for byte in bytes_])


@triton.jit
def _read_pairs(bytes_, out):  # type: ignore[no-untyped-def]
    at = tl.arange(0, 256)
    wide = narrow.e2m1_pairs(tl.load(bytes_ + at), tl.float32)
    tl.store(out + at[:, None] * 2 + tl.arange(0, 2)[None, :], wide)


def test_the_plain_form_reads_every_byte_of_two_e2m1_codes() -> None:
    out = torch.empty(256, 2)
    _read_pairs[(1,)](torch.arange(256).to(torch.uint8), out)
    want = [E2M1[code] for byte in range(256) for code in (byte & 15, byte >> 4)]
    assert same(out.flatten().tolist(), want)


@triton.jit
def _write_codes(wide, narrowest, powers, e4m3, e2m1, bytes_):  # type: ignore[no-untyped-def]
    at, few = tl.arange(0, 256), tl.arange(0, 16)
    tl.store(e4m3 + at, narrow.code_e4m3(tl.load(wide + at)))
    tl.store(e2m1 + few, narrow.code_e2m1(tl.load(narrowest + few)))
    tl.store(bytes_ + at, narrow.e8m0_byte(tl.load(powers + at)))


def test_every_number_of_a_narrow_format_becomes_its_code() -> None:
    codes = torch.arange(256).to(torch.uint8)
    wide = codes.view(torch.float8_e4m3fn).float()
    powers = torch.exp2(torch.arange(256).clamp(1, 254) - 127.0)
    e4m3, e2m1, bytes_ = (torch.zeros(n, dtype=torch.uint8) for n in (256, 16, 256))
    _write_codes[(1,)](wide.nan_to_num(0.0), torch.tensor(E2M1), powers, e4m3, e2m1, bytes_)
    numbers = ~wide.isnan()
    assert torch.equal(e4m3[numbers], codes[numbers])
    assert e2m1.tolist() == list(range(16))
    assert bytes_.tolist() == [min(max(byte, 1), 254) for byte in range(256)]


@triton.jit
def _read_e8m0(bytes_, out):  # type: ignore[no-untyped-def]
    at = tl.arange(0, 256)
    tl.store(out + at, narrow.e8m0(tl.load(bytes_ + at)))


def test_every_exponent_but_nan_is_its_power_of_two() -> None:
    out = torch.empty(256)
    _read_e8m0[(1,)](torch.arange(256).to(torch.uint8), out)
    assert out[:255].double().tolist() == [2.0 ** (byte - 127) for byte in range(255)]
