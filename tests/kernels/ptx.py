"""The few PTX instructions of `kernels.narrow` on Python integers, lanes of BF16 in float64.

So that the text which only a GPU executes is checked, code by code, where there is none.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

MASK = 0xFFFFFFFF


def run(text: str, outputs: int, inputs: list[int]) -> list[int]:
    """Registers $0 .. of `text`, an inline assembly block, for the `inputs` that follow them."""
    registers = {f"${outputs + i}": value for i, value in enumerate(inputs)}
    for line in re.findall(r"^\s*([a-z][\w.]*)\s+([^;]*);", text, re.M):
        name, operands = line[0], [word.strip() for word in line[1].split(",")]
        if operands[0].startswith("{"):
            low, high, whole = (word.strip("{} ") for word in operands)
            registers[low], registers[high] = registers[whole] & 0xFFFF, registers[whole] >> 16
            continue
        values = [registers[w] if w in registers else int(w, 0) for w in operands[1:]]
        registers[operands[0]] = _STEPS[name](*values) & MASK
    return [registers[f"${i}"] for i in range(outputs)]


def lanes(register: int) -> list[float]:
    """The two BF16 numbers of a register, lower first."""
    return [_wide(register & 0xFFFF), _wide(register >> 16)]


def pair(low: int, high: int) -> int:
    """A register of two BF16 bit patterns."""
    return low | high << 16


def _wide(half: int) -> float:
    return struct.unpack("<f", struct.pack("<I", half << 16))[0]


def _narrow(value: float) -> int:
    """BF16 bits of a number that BF16 holds exactly."""
    raw = struct.unpack("<I", struct.pack("<f", value))[0]
    assert raw & 0xFFFF == 0, f"{value} is rounded"
    return raw >> 16


def _permute(a: int, b: int, selector: int) -> int:
    source = (a | b << 32).to_bytes(8, "little")
    return int.from_bytes(bytes(source[selector >> 4 * i & 7] for i in range(4)), "little")


def _table(a: int, b: int, c: int, table: int) -> int:
    """LOP3: bit i of the result is bit 4 a_i + 2 b_i + c_i of the table."""
    return sum(
        (table >> (4 * (a >> i & 1) + 2 * (b >> i & 1) + (c >> i & 1)) & 1) << i for i in range(32)
    )


def _multiply_add(a: int, b: int, c: int) -> int:
    halves = [
        0x8000 if x * y == 0 and str(x * y)[0] == "-" and z == 0 else _narrow(x * y + z)
        for x, y, z in zip(lanes(a), lanes(b), lanes(c), strict=True)
    ]
    return pair(*halves)


_STEPS: dict[str, Callable[..., int]] = {
    "mov.b32": lambda a: a,
    "cvt.u32.u16": lambda a: a,
    "mul.lo.u32": lambda a, b: a * b,
    "shf.r.wrap.b32": lambda a, b, c: (a | b << 32) >> c,
    "prmt.b32": _permute,
    "shr.b32": lambda a, b: a >> b,
    "shl.b32": lambda a, b: a << b,
    "and.b32": lambda a, b: a & b,
    "lop3.b32": _table,
    "fma.rn.bf16x2": _multiply_add,
}
