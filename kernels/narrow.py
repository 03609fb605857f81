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
# ordinary size (2 ** -20 and more) is subnormal.
E2M1_SCALES = (40, 160)

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

# Four bytes of two codes in $4, their factors in $5 and $6. $0, $1: the lower codes, $2, $3: the
# upper ones. In its half of a register a byte has s ee m at 15 .. 12 and at 11 .. 8.
_E2M1_ASM = tl.constexpr("""{
.reg .b32 a, b, c, d, e, f, g, h, k, z;
mov.b32 k, 0x81C081C0;
mov.b32 z, 0x80008000;
prmt.b32 a, $4, 0, 0x1404;
prmt.b32 b, $4, 0, 0x3424;
shl.b32 c, a, 4;
shl.b32 d, b, 4;
shr.b32 e, c, 6;
shr.b32 f, d, 6;
shr.b32 g, a, 6;
shr.b32 h, b, 6;
and.b32 g, g, 0x01C001C0;
and.b32 h, h, 0x01C001C0;
lop3.b32 c, c, e, k, 0xA8;
lop3.b32 d, d, f, k, 0xA8;
lop3.b32 a, a, z, g, 0xEA;
lop3.b32 b, b, z, h, 0xEA;
fma.rn.bf16x2 $0, c, $5, z;
fma.rn.bf16x2 $1, d, $6, z;
fma.rn.bf16x2 $2, a, $5, z;
fma.rn.bf16x2 $3, b, $6, z;
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
def e2m1(packed, exponents, DOT: tl.constexpr):  # type: ignore[no-untyped-def]
    """`DOT` numbers of the lower and of the upper codes of `packed` bytes, times 2 ** -32.

    `exponents` (E8M0 bytes, one per packed byte) are their groups' scales.
    """
    if tl.bfloat16 == DOT:
        factor = ((exponents.to(tl.int16) + 94) << 7).to(tl.bfloat16, bitcast=True)
        low, high = tl.inline_asm_elementwise(
            _E2M1_ASM,
            "=r,=r,=r,=r,r,r,r",
            [packed, factor],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=4,
        )
    else:
        factor = ((exponents.to(tl.int32) + 94) << 23).to(tl.float32, bitcast=True)
        code = packed.to(tl.int32)
        low = (((code & 8) << 28) | ((code & 7) << 22)).to(tl.float32, bitcast=True) * factor
        high = (((code & 128) << 24) | ((code & 112) << 18)).to(tl.float32, bitcast=True) * factor
    return low, high


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
