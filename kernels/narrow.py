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
# Where a pair of words has its eight pairs of codes: in the first word, in the second, or in both,
# whose bits under `E2M1_FIRST` are the first word's. Turned right by as many bits, a pair's first
# code stands in the lower half and its second in the upper, with the bits where BF16 has them
# (`E2M1_PLACES`). 16 bits have no room for four codes of this form: each word has three pairs and
# half the bits of the other two.
E2M1_PAIRS = (
    ("first", 4), ("first", 26), ("first", 30), ("second", 2),
    ("second", 8), ("second", 28), ("both", 0), ("both", 6),
)  # fmt: skip
E2M1_PLACES = (6, 7, 8, 15)  # mantissa, exponent's lower and upper bit, sign
E2M1_FIRST = 0x00010001 * (
    0xFFFF & ~sum(1 << (at + turn) % 16 for turn in (4, 26, 30) for at in E2M1_PLACES)
)

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

# Four bytes of two E2M1 codes each in $4; $0 and $1 get the BF16 numbers of their lower codes, $2
# and $3 those of their upper ones. A byte goes to the upper half of its half word; the sign of a
# code s ee m is moved to the top, the rest to the last of the exponent's and the first of the
# mantissa's bits. 0x7E807E80 is 2 ** 126.
_E2M1_PAIRS_ASM = tl.constexpr("""{
.reg .b32 a, b, c, d, e, f, k, z;
mov.b32 k, 0x7E807E80;
mov.b32 z, 0x80008000;
prmt.b32 a, $4, 0, 0x1404;
prmt.b32 b, $4, 0, 0x3424;
shr.b32 c, a, 2;
shr.b32 d, b, 2;
and.b32 c, c, 0x01C001C0;
and.b32 d, d, 0x01C001C0;
shl.b32 e, a, 4;
shl.b32 f, b, 4;
lop3.b32 c, e, z, c, 0xEA;
lop3.b32 d, f, z, d, 0xEA;
fma.rn.bf16x2 $0, c, k, z;
fma.rn.bf16x2 $1, d, k, z;
shr.b32 c, a, 6;
shr.b32 d, b, 6;
and.b32 c, c, 0x01C001C0;
and.b32 d, d, 0x01C001C0;
lop3.b32 c, a, z, c, 0xEA;
lop3.b32 d, b, z, d, 0xEA;
fma.rn.bf16x2 $2, c, k, z;
fma.rn.bf16x2 $3, d, k, z;
}""")


def _e2m1_assembly() -> str:
    """A pair of words in $16 and $17, the biased scales of their rows r and r + 8 in $18.

    $0 and $1, $2 and $3 ... get pairs of codes times their row's factor, rows in turn. Multiplied
    by 2 ** 7 in both halves, a scale stands where BF16 has its exponent.
    """
    lines = [
        ".reg .b32 s, a, j, k, z, both;",
        "mov.b32 z, 0x80008000;",
        "cvt.u32.u16 s, $18;",
        "and.b32 j, s, 255;",
        "shr.b32 k, s, 8;",
        "mul.lo.u32 j, j, 0x00800080;",
        "mul.lo.u32 k, k, 0x00800080;",
        f"lop3.b32 both, $16, $17, {E2M1_FIRST:#010x}, 0xE4;",
    ]
    words = {"first": "$16", "second": "$17", "both": "both"}
    for pair, (name, turn) in enumerate(E2M1_PAIRS):
        word = words[name]
        if turn > 25:  # all of the pair's bits are right of their places
            lines.append(f"shl.b32 a, {word}, {32 - turn};")
        elif turn > 0:
            lines.append(f"shf.r.wrap.b32 a, {word}, {word}, {turn};")
        lines += [
            f"and.b32 a, {'a' if turn else word}, 0x81C081C0;",
            f"fma.rn.bf16x2 a, a, {'jk'[pair % 2]}, z;",
            f"mov.b32 {{${2 * pair}, ${2 * pair + 1}}}, a;",
        ]
    return "{\n" + "\n".join(lines) + "\n}"


_E2M1_ASM = tl.constexpr(_e2m1_assembly())
_E2M1_REGISTERS = tl.constexpr("=h," * 16 + "r,r,h")
_FIRST = tl.constexpr(E2M1_FIRST)


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
def e2m1(first, second, scales, DOT: tl.constexpr):  # type: ignore[no-untyped-def]
    """`DOT` numbers [..., 2, 2, 2, 2] of the codes of a bank's pairs of words, times 2 ** -32.

    `first`, `second` and `scales` [...]; a scale's lower byte is the biased one of the codes whose
    last index is 0, its upper byte that of the others.
    """
    if tl.bfloat16 == DOT:
        a, a2, b, b2, c, c2, d, d2, e, e2, f, f2, g, g2, h, h2 = tl.inline_asm_elementwise(
            _E2M1_ASM, _E2M1_REGISTERS, [first, second, scales],
            dtype=(tl.bfloat16,) * 16, is_pure=True, pack=1,
        )  # fmt: skip
        a, b, c, d = tl.join(a, a2), tl.join(b, b2), tl.join(c, c2), tl.join(d, d2)
        e, f, g, h = tl.join(e, e2), tl.join(f, f2), tl.join(g, g2), tl.join(h, h2)
    else:
        first, second = first.to(tl.uint32, bitcast=True), second.to(tl.uint32, bitcast=True)
        both = (first & _FIRST) | (second & (0xFFFFFFFF - _FIRST))
        low = ((scales.to(tl.int32) & 255) << 23).to(tl.float32, bitcast=True)
        high = ((scales.to(tl.int32) & 0xFF00) << 15).to(tl.float32, bitcast=True)
        a, b, c = _pair(first, 4, low), _pair(first, 26, high), _pair(first, 30, low)
        d, e, f = _pair(second, 2, high), _pair(second, 8, low), _pair(second, 28, high)
        g, h = _pair(both, 0, low), _pair(both, 6, high)
    return tl.join(tl.join(tl.join(a, e), tl.join(c, g)), tl.join(tl.join(b, f), tl.join(d, h)))


@triton.jit
def _pair(word, TURN: tl.constexpr, factor):  # type: ignore[no-untyped-def]
    """Float32 [..., 2] of a pair of codes, times 2 ** -126 and `factor`."""
    if TURN > 0:
        word = (word >> TURN) | (word << (32 - TURN))
    low = ((word & 0x81C0) << 16).to(tl.float32, bitcast=True)
    high = (word & 0x81C00000).to(tl.float32, bitcast=True)
    return tl.join(low * factor, high * factor)


@triton.jit
def e2m1_pairs(codes, DOT: tl.constexpr):  # type: ignore[no-untyped-def]
    """`DOT` numbers [..., 2] of a tile of bytes of two E2M1 codes, the lower one's first."""
    if tl.bfloat16 == DOT:
        low, high = tl.inline_asm_elementwise(
            _E2M1_PAIRS_ASM, "=r,=r,=r,=r,r", [codes],
            dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4,
        )  # fmt: skip
    else:
        wide = codes.to(tl.int32)
        size = 8.507059173023462e37  # 2 ** 126
        low = (((wide & 0x08) << 28) | ((wide & 0x07) << 22)).to(tl.float32, bitcast=True) * size
        high = (((wide & 0x80) << 24) | ((wide & 0x70) << 18)).to(tl.float32, bitcast=True) * size
    return tl.join(low, high)


@triton.jit
def power(byte, DOT: tl.constexpr):  # type: ignore[no-untyped-def]
    """`DOT` 2 ** (byte - 127) of bytes 1 to 254; of byte 0, where nothing was read, finite."""
    if tl.bfloat16 == DOT:
        wide = (byte.to(tl.int16) << 7).to(tl.bfloat16, bitcast=True)
    else:
        wide = e8m0(byte)
    return wide


@triton.jit
def e8m0_byte(power):  # type: ignore[no-untyped-def]
    """The E8M0 byte of a normal, positive float32 power of two."""
    return (power.to(tl.int32, bitcast=True) >> 23).to(tl.uint8)


@triton.jit
def code_e4m3(x):  # type: ignore[no-untyped-def]
    """The E4M3 code (uint8) of float32 `x`, which is such a number."""
    bits = x.to(tl.int32, bitcast=True)
    size = tl.abs(x)
    # Under 2 ** -6 numbers are subnormal: multiples of 2 ** -9.
    code = tl.where(
        size < 0.015625, (size * 512.0).to(tl.int32), ((bits & 0x7FFFFFFF) >> 20) - (120 << 3)
    )
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def code_e2m1(x):  # type: ignore[no-untyped-def]
    """The E2M1 code (uint8) of float32 `x`, which is such a number."""
    bits = x.to(tl.int32, bitcast=True)
    size = tl.abs(x)
    code = tl.where(size < 1.0, (size * 2.0).to(tl.int32), ((bits & 0x7FFFFFFF) >> 22) - (126 << 1))
    return (code | ((bits >> 28) & 0x08)).to(tl.uint8)


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
