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


@pytest.mark.parametrize("first", range(0, 256, 4))
@pytest.mark.parametrize("byte", [narrow.E2M1_SCALES[0], 120, 127, narrow.E2M1_SCALES[1]])
def test_the_assembly_reads_every_pair_of_e2m1_codes(first: int, byte: int) -> None:
    codes = list(range(first, first + 4))
    factors = [(byte + 94) << 7, (byte + 95 if byte < 160 else byte + 94) << 7]
    sizes = [math.ldexp(1.0, (f >> 7) - 94 - 127 - narrow.E2M1_SHIFT) for f in factors] * 2
    given = [word(codes), ptx.pair(*factors), ptx.pair(*factors)]
    registers = ptx.run(narrow._E2M1_ASM.value, 4, given)
    low = [v for r in registers[:2] for v in ptx.lanes(r)]
    high = [v for r in registers[2:] for v in ptx.lanes(r)]
    assert same(low, [E2M1[c & 15] * s for c, s in zip(codes, sizes, strict=True)])
    assert same(high, [E2M1[c >> 4] * s for c, s in zip(codes, sizes, strict=True)])


@triton.jit
def _read_e2m1(packed, exponents, low, high):  # type: ignore[no-untyped-def]
    at = tl.arange(0, 256)
    codes, scales = tl.load(packed + at), tl.load(exponents + at)
    even, odd = narrow.e2m1(codes, scales, tl.float32)
    tl.store(low + at, even)
    tl.store(high + at, odd)


@pytest.mark.parametrize("byte", [*narrow.E2M1_SCALES, 119])
def test_the_plain_form_reads_every_pair_of_e2m1_codes(byte: int) -> None:
    packed = torch.arange(256).to(torch.uint8)
    low, high = torch.empty(256), torch.empty(256)
    _read_e2m1[(1,)](packed, torch.full_like(packed, byte), low, high)
    size = math.ldexp(1.0, byte - 127 - narrow.E2M1_SHIFT)
    assert same(low.tolist(), [E2M1[c & 15] * size for c in range(256)])
    assert same(high.tolist(), [E2M1[c >> 4] * size for c in range(256)])


@triton.jit
def _read_e8m0(bytes_, out):  # type: ignore[no-untyped-def]
    at = tl.arange(0, 256)
    tl.store(out + at, narrow.e8m0(tl.load(bytes_ + at)))


def test_every_exponent_but_nan_is_its_power_of_two() -> None:
    out = torch.empty(256)
    _read_e8m0[(1,)](torch.arange(256).to(torch.uint8), out)
    assert out[:255].double().tolist() == [2.0 ** (byte - 127) for byte in range(255)]
