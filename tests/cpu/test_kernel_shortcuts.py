"""The shortcuts of the interpreter's gates: the numbers and the refusals of the plain one."""

from __future__ import annotations

from typing import Any

import gates
import numpy as np
import pytest
import torch

gates.interpreter()

import operands  # noqa: E402
import operations  # noqa: E402
import shortcuts  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from torch import Tensor  # noqa: E402
from triton.runtime import interpreter  # noqa: E402
from triton.runtime.errors import InterpreterError  # noqa: E402

OPERATIONS = [
    operations.attend(2, 32, 8, 16, 50, kind="attend", capacity=20, ratio=4, count=6),
    operations.attend(2, 80, 8, 16, 1, kind="attend", capacity=20, ratio=8, packed=True),
    operations.choose_rows(2, 32, 40, 90),
    operations.pick(101, temperature=0.7),
]


@pytest.mark.parametrize("op", OPERATIONS, ids=str)
def test_a_launch_gives_the_bits_of_the_plain_interpreter(op: gates.Operation) -> None:
    inputs = op.inputs(3, "cpu")
    quick = op.run(inputs)
    with shortcuts.plain():
        plain = op.run(inputs)
    assert len(quick) == len(plain)
    for one, other in zip(quick, plain, strict=True):
        assert torch.equal(gates.bits(one), gates.bits(other))


FORMATS = (tl.float32, tl.bfloat16, tl.float16, tl.float8e4nv, tl.float8e5)
# Between two of one width the plain interpreter's shifts are longer than the words: no one result.
PAIRS = [
    (source, target) for source in FORMATS for target in FORMATS
    if source.primitive_bitwidth != target.primitive_bitwidth
]  # fmt: skip
ROUNDINGS = (None, interpreter._ir.ROUNDING_MODE.RTNE)


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=str)
@pytest.mark.parametrize(("source", "target"), PAIRS, ids=str)
def test_every_kind_of_float_is_converted_as_by_the_plain_interpreter(
    source: tl.dtype, target: tl.dtype, rounding: Any
) -> None:
    width = source.primitive_bitwidth
    if width == 32:  # each short one with what is cut off: nothing, around half, and all
        tails = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
        every = np.arange(0, 1 << 16, 5, np.uint32)[:, None] << 16 | tails
        subnormal = ((every & 0x7F800000) == 0) & ((every & 0x7FFFFF) != 0)
        cases = [every.view(np.float32), every[~subnormal].view(np.float32)]
    else:
        cases = [np.arange(1 << width).astype(f"uint{width}").reshape(2, -1)]
    for given in cases:
        quick = operands.convert_float(given, source, target, rounding)
        with shortcuts.plain():
            plain = interpreter._convert_float(given, source, target, rounding)
        assert quick.dtype == plain.dtype
        assert np.array_equal(quick, plain)


@triton.jit
def _mixed(whole: Tensor, short: Tensor, out: Tensor, count: int, rows: tl.constexpr):
    """Two operands of every kind: tensors and numbers, of several types, shapes and orders."""
    i = tl.arange(0, 8)
    n = tl.load(whole + i[:, None] * 0 + i[None, :] % count)
    x = tl.load(short + i, mask=i < count, other=2.5).to(tl.float32)
    y = x * 2 - 1 / (x + 3.5) + (i == count) * -0.0 + 7 % (n.to(tl.int64) * n + 1)
    z = tl.where(y > 2, y, -1) + i[:, None] // 3 * (n >> 1).to(tl.int8)
    z += n * n + n * x
    z += (n.to(tl.uint8) + 3).to(tl.float32) + (i < count) + tl.zeros((1, 8), tl.float32)
    for row in tl.static_range(rows):
        at = out + (row * 64 + i[:, None] * 8 + i[None, :]).to(tl.int64)
        tl.store(at, (z + row).to(tl.bfloat16), mask=(i[:, None] >= row) & (i[None, :] != 3))


def test_operands_of_unlike_kinds_are_made_alike_as_in_the_plain_interpreter() -> None:
    whole, short = torch.arange(-3, 5, dtype=torch.int32), torch.randn(8).bfloat16()
    quick = torch.zeros(3, 64, dtype=torch.bfloat16)
    again, plain = quick.clone(), quick.clone()
    for out in (quick, again):  # what was found the first time, and what was kept of it
        _mixed[(1,)](whole, short, out, 5, rows=3)
    with shortcuts.plain():
        _mixed[(1,)](whole, short, plain, 5, rows=3)
    assert torch.equal(gates.bits(quick), gates.bits(plain))
    assert torch.equal(gates.bits(again), gates.bits(plain))
    assert quick.any()


@triton.jit
def _refused(given: Tensor, case: tl.constexpr):
    i = tl.arange(0, 4)
    if case == "a float beside a pointer":
        tl.load(given + 0.5)
    elif case == "a number below zero beside whole ones":
        i.to(tl.uint32) + -1
    elif case == "a number too large":
        i.to(tl.int8) + 300
    elif case == "shapes that do not meet":
        i + tl.arange(0, 8)
    else:
        given + given


@pytest.mark.parametrize(
    "case",
    ["a float beside a pointer", "a number below zero beside whole ones", "a number too large",
     "shapes that do not meet", "two pointers"],
)  # fmt: skip
def test_operands_that_do_not_go_together_are_refused_each_time(case: str) -> None:
    said = []
    for _ in range(2):
        with pytest.raises(InterpreterError) as refusal:
            _refused[(1,)](torch.zeros(4), case=case)
        said.append(str(refusal.value))
    with shortcuts.plain(), pytest.raises(InterpreterError) as refusal:
        _refused[(1,)](torch.zeros(4), case=case)
    assert said == [str(refusal.value)] * 2


@triton.jit
def _wraps(out: Tensor, value: int, size: tl.constexpr):
    at = tl.arange(0, size)
    tl.store(out + at, (at + value) * 65599 - value)


def test_whole_numbers_wrap_around_as_in_the_plain_interpreter() -> None:
    quick, plain = torch.zeros(2, 8, dtype=torch.int32)
    _wraps[(1,)](quick, 2**31 - 3, size=8)
    with shortcuts.plain():
        _wraps[(1,)](plain, 2**31 - 3, size=8)
    assert torch.equal(quick, plain)
    assert (quick < 0).any()


@triton.jit
def _filled(out: Tensor, size: tl.constexpr):
    tl.store(out + tl.arange(0, 1), tl.sum(tl.full((size,), 1.0, tl.float32)))


def test_a_shape_that_no_tensor_may_have_is_refused_each_time() -> None:
    out = torch.zeros(1)
    _filled[(1,)](out, size=4)
    assert out.item() == 4.0
    for _ in range(2):
        with pytest.raises(InterpreterError, match="power of 2"):
            _filled[(1,)](out, size=3)
