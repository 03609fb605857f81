"""The narrow formats inside kernels: E8M0, E4M3 and E2M1 made of bits, exact on every device.

Hopper converts E4M3 to BF16 one weight at a time on a slow unit, and has nothing for E2M1. Here a
code's exponent and mantissa bits are moved to where BF16 has its own, two codes a register, and one
multiplication by a power of two repairs the difference of the exponents' biases. It repairs
subnormal codes as well, since BF16 arithmetic keeps subnormal numbers. `DOT` is the operand type of
the matrix product that follows: BF16 on a GPU, else float32, by plain operations that the
interpreter knows too. NaN codes of E4M3 read as 480: whoever loads weights refuses them.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Weights of MXFP4 leave `e2m1` times 2 ** -E2M1_SHIFT, so that the factor that repairs the bias
# (2 ** 126) and the group's scale fit one BF16 number together; the sum is repaired at the end.
E2M1_SHIFT = 32
E2M1_REPAIR = tl.constexpr(2.0**E2M1_SHIFT)
# E8M0 bytes for which every factor is in range and no product of a weight and an activation of
# ordinary size (2 ** -20 and more) is subnormal. A bank keeps them with the bias of the factor.
E2M1_SCALES = (40, 160)
E2M1_BIAS = 126 - E2M1_SHIFT
# Where a word has the bits of its eight codes: mantissa, exponent's lower and upper, sign. The
# first five keep the distances that the bits have in BF16 (6, 7, 8 and 15): one shift moves a code.
E2M1_BITS = (
    (6, 7, 8, 15), (3, 4, 5, 12), (0, 1, 2, 9), (16, 17, 18, 25), (19, 20, 21, 28),
    (10, 11, 24, 31), (13, 14, 23, 30), (26, 27, 22, 29),
)  # fmt: skip

# Four codes in $2; $0 and $1 get two BF16 numbers each. A code s eeee mmm goes to the upper byte of
# its half, then its lower seven bits move to the last of the exponent's and the first of the
# mantissa's. 0x7B80 is 2 ** 120; the addend -0 keeps the sign of zero.
_E4M3_ASM = tl.constexpr("""{
.reg .b32 a, b, c, d, k, z;
mov.b32 k, 0x7B807B80;
mov.b32 z, 0x80008000;
prmt.b32 a, $2, 0, 0x1404;
prmt.b32 b, $2, 0, 0x3424;
shr.b32 c, a, 4;
shr.b32 d, b, 4;
and.b32 c, c, 0x07F007F0;
and.b32 d, d, 0x07F007F0;
lop3.b32 c, a, z, c, 0xEA;
lop3.b32 d, b, z, d, 0xEA;
fma.rn.bf16x2 $0, c, k, z;
fma.rn.bf16x2 $1, d, k, z;
}""")

# Two words in $8 and $9, the biased scales of their rows r and r + 8 in both halves of $10. Each of
# $0 .. $7 gets one code of either word, times its row's factor: even ones are of row r. A, B: lower
# and upper halves of both words.
_E2M1_ASM = tl.constexpr("""{
.reg .b32 a, b, c, d, e, f, g, h, i, j, k, z;
mov.b32 z, 0x80008000;
shl.b32 j, $10, 7;
shr.b32 k, $10, 1;
and.b32 j, j, 0x7F807F80;
and.b32 k, k, 0x7F807F80;
prmt.b32 a, $8, $9, 0x5410;
prmt.b32 b, $8, $9, 0x7632;
and.b32 c, a, 0x81C081C0;
fma.rn.bf16x2 $0, c, j, z;
shl.b32 d, a, 3;
and.b32 d, d, 0x81C081C0;
fma.rn.bf16x2 $1, d, k, z;
shl.b32 e, a, 6;
and.b32 e, e, 0x81C081C0;
fma.rn.bf16x2 $2, e, j, z;
shl.b32 f, b, 6;
and.b32 f, f, 0x81C081C0;
fma.rn.bf16x2 $3, f, k, z;
shl.b32 g, b, 3;
and.b32 g, g, 0x81C081C0;
fma.rn.bf16x2 $4, g, j, z;
shr.b32 c, a, 4;
and.b32 c, c, 0x00C000C0;
lop3.b32 c, b, 0x81008100, c, 0xEA;
fma.rn.bf16x2 $5, c, k, z;
shr.b32 d, a, 7;
and.b32 d, d, 0x00C000C0;
shl.b32 h, b, 1;
lop3.b32 d, h, 0x81008100, d, 0xEA;
fma.rn.bf16x2 $6, d, j, z;
shr.b32 e, b, 4;
and.b32 e, e, 0x00C000C0;
shl.b32 i, b, 2;
lop3.b32 e, i, 0x81008100, e, 0xEA;
fma.rn.bf16x2 $7, e, k, z;
}""")


@triton.jit
def e8m0(byte):  # type: ignore[no-untyped-def]
    """Float32 2 ** (byte - 127) of bytes 0 to 254; byte 0 is a subnormal number."""
    wide = byte.to(tl.int32)
    return tl.where(wide == 0, 0x00400000, wide << 23).to(tl.float32, bitcast=True)


@triton.jit
def e4m3(codes, DOT: tl.constexpr):  # type: ignore[no-untyped-def]
    """`DOT` numbers of a tile of E4M3 `codes` (uint8)."""
    if tl.bfloat16 == DOT:
        wide = tl.inline_asm_elementwise(
            _E4M3_ASM, "=r,=r,r", [codes], dtype=tl.bfloat16, is_pure=True, pack=4
        )
    else:
        wide = codes.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    return wide


@triton.jit
def e2m1(words, scales, DOT: tl.constexpr):  # type: ignore[no-untyped-def]
    """`DOT` numbers [..., 2, 2, 2] of the codes of a bank's `words` [...], times 2 ** -32.

    `scales` [...] has in its lower byte the biased scale of the codes whose last index is 0, in its
    upper byte that of the others.
    """
    if tl.bfloat16 == DOT:
        a, b, c, d, e, f, g, h = tl.inline_asm_elementwise(
            _E2M1_ASM, "=r,=r,=r,=r,=r,=r,=r,=r,r,r,r", [words, scales],
            dtype=(tl.bfloat16,) * 8, is_pure=True, pack=2,
        )  # fmt: skip
    else:
        low = ((scales.to(tl.int32) & 255) << 23).to(tl.float32, bitcast=True)
        high = ((scales.to(tl.int32) & 0xFF00) << 15).to(tl.float32, bitcast=True)
        a = _code(words, 6, 8, 15) * low
        b = _code(words, 3, 5, 12) * high
        c = _code(words, 0, 2, 9) * low
        d = _code(words, 16, 18, 25) * high
        e = _code(words, 19, 21, 28) * low
        f = _code(words, 10, 24, 31) * high
        g = _code(words, 13, 23, 30) * low
        h = _code(words, 26, 22, 29) * high
    return tl.join(tl.join(tl.join(a, e), tl.join(c, g)), tl.join(tl.join(b, f), tl.join(d, h)))


@triton.jit
def _code(words, low: tl.constexpr, high: tl.constexpr, sign: tl.constexpr):  # type: ignore[no-untyped-def]
    """Float32 of codes times 2 ** -126: two bits from `low`, the exponent's upper, the sign."""
    bits = (((words >> low) & 3) << 22) | (((words >> high) & 1) << 24)
    return (bits | ((words >> sign) << 31)).to(tl.float32, bitcast=True)


@triton.jit
def power_over(x):  # type: ignore[no-untyped-def]
    """The smallest power of two that is not under the normal, positive float32 `x`."""
    bits = x.to(tl.int32, bitcast=True)
    return ((bits + 0x007FFFFF) & 0x7F800000).to(tl.float32, bitcast=True)


@triton.jit
def power_under(x):  # type: ignore[no-untyped-def]
    """The largest power of two that is not over |x|; zero for subnormal numbers."""
    return (x.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)


@triton.jit
def whole(x):  # type: ignore[no-untyped-def]
    """|x| < 2 ** 22 rounded to a whole number, ties to even."""
    magic = 12582912.0  # 1.5 * 2 ** 23: its last bit is worth one
    return (x + magic) - magic


@triton.jit
def inverse_power(power):  # type: ignore[no-untyped-def]
    """1 over a power of two between 2 ** -126 and 2 ** 126."""
    return (0x7F000000 - power.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)


@triton.jit
def signed(size, like):  # type: ignore[no-untyped-def]
    """`size` >= 0 with the sign bit of `like`."""
    sign = like.to(tl.int32, bitcast=True) & -0x80000000
    return (size.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)


@triton.jit
def round_e4m3(x):  # type: ignore[no-untyped-def]
    """The nearest E4M3 number of float32 `x`, ties to even; larger ones than 448 become 448."""
    size = tl.minimum(tl.abs(x), 448.0)
    step = tl.maximum(power_under(size) * 0.125, 0.001953125)
    return signed(whole(size * inverse_power(step)) * step, x)


@triton.jit
def round_e2m1(x):  # type: ignore[no-untyped-def]
    """The nearest E2M1 number of float32 `x`, ties to the even code; larger ones become 6."""
    size = tl.minimum(tl.abs(x), 6.0)
    step = tl.where(size < 2.0, 0.5, tl.where(size < 4.0, 1.0, 2.0))
    return signed(whole(size * inverse_power(step)) * step, x)
