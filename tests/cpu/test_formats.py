"""The narrow number formats, on disk and as rounding, against scalar code of another kind."""

from __future__ import annotations

import math
from bisect import bisect_left
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from engine.formats import (
    decode_e8m0,
    decode_fp8,
    decode_mxfp4,
    encode_e8m0,
    encode_fp8,
    encode_mxfp4,
)
from engine.numerics import Numerics
from engine.rows import RowFormat
from kernels.oracle.rounding import (
    E2M1_VALUES,
    cache_round,
    fp4_round,
    fp8_round,
    hadamard,
    power_of_two_scale,
)

# ------------------------------------------------------------------ scalar twins, in fractions

E4M3 = sorted(
    {Fraction(m, 8) * Fraction(2) ** -6 for m in range(8)}
    | {
        (1 + Fraction(m, 8)) * Fraction(2) ** (e - 7)
        for e in range(1, 16)
        for m in range(8)
        if (e, m) != (15, 7)
    }
)
E2M1 = [Fraction(v) for v in E2M1_VALUES]


def nearest(value: Fraction, grid: list[Fraction]) -> Fraction:
    """The closest grid value by size, a tie going to the even code; the sign is kept."""
    size = min(abs(value), grid[-1])
    above = bisect_left(grid, size)
    if grid[above] == size:
        code = above
    else:
        low, high = size - grid[above - 1], grid[above] - size
        code = above if high < low or (high == low and above % 2 == 0) else above - 1
    return grid[code] if value >= 0 else -grid[code]


def scale_of(values: list[Fraction], floor: Fraction, limit: int) -> Fraction:
    """Smallest power of two that brings the largest value within the limit."""
    largest = max(floor, *(abs(v) for v in values))
    exponent = -200
    while Fraction(2) ** exponent * limit < largest:
        exponent += 1
    return Fraction(2) ** exponent


def rounded(values: list[float], grid: list[Fraction], floor: float, limit: int) -> list[float]:
    exact = [Fraction(v) for v in values]
    scale = scale_of(exact, Fraction(floor), limit)
    return [float(nearest(v / scale, grid) * scale) for v in exact]


def float32s(low: float = -1e6, high: float = 1e6) -> st.SearchStrategy[float]:
    bounds = {"min_value": low, "max_value": high}
    wide = st.floats(width=32, allow_nan=False, allow_subnormal=False, **bounds)
    halves = st.integers(-64, 64).map(lambda i: i / 4)  # many of them are ties
    return st.one_of(wide, halves)


def as_float32(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float32))


# ------------------------------------------------------------------ rounding


@settings(max_examples=150, deadline=None)
@given(st.lists(float32s(), min_size=64, max_size=64))
def test_fp8_rounding_is_the_nearest_e4m3_value(values: list[float]) -> None:
    got = fp8_round(torch.tensor(values), 64).tolist()
    assert got == rounded(values, E4M3, as_float32(1e-4), 448)


@settings(max_examples=150, deadline=None)
@given(st.lists(float32s(), min_size=32, max_size=32))
def test_fp4_rounding_is_the_nearest_e2m1_value(values: list[float]) -> None:
    got = fp4_round(torch.tensor(values)).tolist()
    assert got == rounded(values, E2M1, 6.0 * 2.0**-126, 6)


@pytest.mark.parametrize("limit", [448.0, 6.0])
def test_scales_are_exact_at_and_around_every_power_of_two(limit: float) -> None:
    exponents = torch.arange(-110, 110).float()
    edge = limit * torch.exp2(exponents.double()).float()
    assert torch.equal(power_of_two_scale(edge, limit), torch.exp2(exponents.double()).float())
    above = power_of_two_scale(edge * (1 + 2.0**-10), limit)
    assert torch.equal(above, torch.exp2(exponents.double() + 1).float())
    below = power_of_two_scale(edge * (1 - 2.0**-10), limit)
    assert torch.equal(below, torch.exp2(exponents.double()).float())


@pytest.mark.parametrize("rounding", [lambda x: fp8_round(x, 64), fp4_round])
def test_rounding_again_changes_nothing(rounding: object) -> None:
    assert callable(rounding)
    x = torch.randn(50, 192, generator=torch.Generator().manual_seed(1)) * 7
    once = rounding(x)
    assert torch.equal(rounding(once), once)
    assert not torch.equal(once, x)


def test_rounding_a_row_does_not_depend_on_the_other_rows() -> None:
    x = torch.randn(33, 128, generator=torch.Generator().manual_seed(2)) * 3
    for rounding in (lambda r: fp8_round(r, 64), fp4_round, lambda r: fp4_round(hadamard(r))):
        together = rounding(x[:8])
        for row in range(8):
            assert torch.equal(rounding(x[row : row + 1])[0], together[row])


def test_cache_rounding_spares_the_rotary_tail() -> None:
    row = torch.randn(3, 128, generator=torch.Generator().manual_seed(3))
    got = cache_round(row, 64)
    assert torch.equal(got[:, 64:], row[:, 64:])
    assert torch.equal(got[:, :64], fp8_round(row[:, :64], 64))
    assert torch.equal(Numerics.named("cache").row_(row.clone(), 64), got)
    assert torch.equal(Numerics.named("exact").row_(row.clone(), 64), row)


def test_numerics_name_what_they_round() -> None:
    x = torch.randn(4, 128, generator=torch.Generator().manual_seed(4))
    exact, cache, reference = (Numerics.named(n) for n in ("exact", "cache", "reference"))
    assert torch.equal(exact.activation(x), x)
    assert torch.equal(cache.activation(x), x)
    assert torch.equal(reference.activation(x), fp8_round(x, 128))
    assert torch.equal(exact.index(x), x)
    assert torch.equal(cache.index(x), fp4_round(hadamard(x)))


@pytest.mark.parametrize("size", [1, 2, 32, 128])
def test_hadamard_is_orthogonal_symmetric_and_in_natural_order(size: int) -> None:
    matrix = hadamard(torch.eye(size))
    signs = [[(-1) ** (i & j).bit_count() for j in range(size)] for i in range(size)]
    torch.testing.assert_close(matrix, torch.tensor(signs) * size**-0.5)
    torch.testing.assert_close(matrix @ matrix, torch.eye(size), atol=1e-6, rtol=0)


# ------------------------------------------------------------------ E8M0


def test_every_e8m0_byte_reads_as_its_power_of_two() -> None:
    raw = torch.arange(255, dtype=torch.uint8)
    want = torch.tensor([math.ldexp(1.0, b - 127) for b in range(255)])
    assert torch.equal(decode_e8m0(raw), want)
    assert torch.equal(decode_e8m0(raw.view(torch.float8_e8m0fnu)), want)


def test_every_finite_e8m0_exponent_survives_a_round_trip() -> None:
    raw = torch.arange(1, 255, dtype=torch.uint8)  # byte 0 is a subnormal in float32
    assert torch.equal(encode_e8m0(decode_e8m0(raw)).view(torch.uint8), raw)


# ------------------------------------------------------------------ FP8 blocks


def random_weight(*shape: int, seed: int = 5) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=g) * torch.exp2(torch.randn(shape, generator=g))


@pytest.mark.parametrize("shape", [(128, 128), (256, 384), (1, 1), (130, 64), (64, 257), (5, 129)])
def test_fp8_shapes_need_not_be_multiples_of_the_block(shape: tuple[int, int]) -> None:
    weight = random_weight(*shape)
    codes, scale = encode_fp8(weight)
    assert codes.shape == shape
    assert codes.dtype == torch.float8_e4m3fn
    assert scale.shape == (-(-shape[0] // 128), -(-shape[1] // 128))
    read = decode_fp8(codes, scale)
    block = torch.arange(shape[0])[:, None] // 128 * 1000 + torch.arange(shape[1]) // 128
    for b in block.unique():
        inside = block == b
        largest = weight[inside].abs().max()
        # Half a step of 2^-4 relative for normal values, of 2^-10 scales for subnormal ones.
        allowed = torch.maximum(weight.abs() * 2.0**-4, largest * 2.0**-16)
        assert ((read - weight).abs() <= allowed)[inside].all()


def test_fp8_blocks_keep_their_own_exponent() -> None:
    weight = torch.ones(256, 256)
    weight[:128, 128:] = 2.0**40
    weight[128:, :128] = -(2.0**-13)
    codes, scale = encode_fp8(weight)
    assert torch.equal(decode_fp8(codes, scale), weight)
    assert scale.view(torch.uint8).unique().numel() == 3


@pytest.mark.parametrize("seed", range(3))
def test_fp8_values_once_read_are_written_back_bit_for_bit(seed: int) -> None:
    once = decode_fp8(*encode_fp8(random_weight(200, 300, seed=seed)))
    assert torch.equal(decode_fp8(*encode_fp8(once)), once)


@pytest.mark.parametrize("byte", [1, 60, 127, 200, 240])
def test_fp8_scales_reach_the_ends_of_the_exponent(byte: int) -> None:
    codes = torch.tensor([[448.0, -1.0, 0.0, 2.0**-9]]).to(torch.float8_e4m3fn)
    scale = torch.full((1, 1), byte, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    want = [v * math.ldexp(1.0, byte - 127) for v in (448.0, -1.0, 0.0, 2.0**-9)]
    assert decode_fp8(codes, scale).double().tolist() == [
        pytest.approx(want, rel=1e-6) if byte < 20 else want
    ]


# ------------------------------------------------------------------ MXFP4


def test_mxfp4_codes_lie_low_nibble_first() -> None:
    packed = torch.tensor([[0x21, 0x9F] + [0] * 14], dtype=torch.uint8).view(torch.int8)
    scale = torch.tensor([[129]], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    read = decode_mxfp4(packed, scale)
    assert read[0, :4].tolist() == [0.5 * 4, 1.0 * 4, -6.0 * 4, -0.5 * 4]
    assert not read[0, 4:].any()


def test_every_mxfp4_code_survives_with_its_sign_negative_zero_included() -> None:
    codes = torch.arange(16, dtype=torch.uint8).repeat(2)
    packed = (codes[::2] | (codes[1::2] << 4)).view(torch.int8)[None]
    scale = torch.full((1, 1), 120, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    values = decode_mxfp4(packed, scale)
    assert torch.signbit(values[0, 8])
    assert values[0, 8] == 0
    again, exponent = encode_mxfp4(values)
    assert torch.equal(again, packed)
    assert torch.equal(exponent.view(torch.uint8), scale.view(torch.uint8))


@settings(max_examples=60, deadline=None)
@given(st.lists(float32s(-1e4, 1e4), min_size=64, max_size=64))
def test_mxfp4_stores_the_nearest_values(values: list[float]) -> None:
    packed, scale = encode_mxfp4(torch.tensor([values]))
    want = [
        v for half in (values[:32], values[32:]) for v in rounded(half, E2M1, 6.0 * 2.0**-126, 6)
    ]
    assert decode_mxfp4(packed, scale)[0].tolist() == want


@pytest.mark.parametrize("exponent", [-120, -60, 0, 60, 120])
def test_mxfp4_groups_of_extreme_size_survive(exponent: int) -> None:
    group = torch.tensor(E2M1_VALUES * 4) * torch.tensor(math.ldexp(1.0, exponent))
    both = torch.cat((group, -group.flip(0)))[None]
    assert torch.equal(decode_mxfp4(*encode_mxfp4(both)), both)


def test_mxfp4_works_on_stacks_of_matrices() -> None:
    weight = random_weight(3, 5, 64)
    packed, scale = encode_mxfp4(weight)
    assert packed.shape == (3, 5, 32)
    assert scale.shape == (3, 5, 2)
    for i in range(3):
        one = decode_mxfp4(*encode_mxfp4(weight[i]))
        assert torch.equal(decode_mxfp4(packed, scale)[i], one)


# ------------------------------------------------------------------ stored rows


def test_packed_rows_hold_rounded_rows_without_loss() -> None:
    packed = RowFormat("packed", 192, 64)
    rows = cache_round(random_weight(11, 192), 64)
    rows[3] = 0.0
    stored = packed.encode(rows)
    assert stored.dtype == torch.uint8
    assert stored.shape == (11, packed.width)
    assert packed.width < 192 * 4
    assert torch.equal(packed.decode(stored), rows)


def test_packed_rows_of_extreme_size_survive() -> None:
    packed = RowFormat("packed", 128, 64)
    for exponent in (-20, 0, 20, 60):
        rows = cache_round(random_weight(4, 128) * 2.0**exponent, 64)
        assert torch.equal(packed.decode(packed.encode(rows)), rows)


def test_plain_rows_are_stored_as_they_are() -> None:
    plain = RowFormat("float32", 128, 64)
    rows = random_weight(4, 128)
    assert torch.equal(plain.decode(plain.encode(rows)), rows)
