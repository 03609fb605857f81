"""The shortcuts of the interpreter's gates: the numbers and the refusals of the plain one."""

from __future__ import annotations

import gates
import pytest
import torch

gates.interpreter()

import operations  # noqa: E402
import shortcuts  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from torch import Tensor  # noqa: E402
from triton.runtime.errors import InterpreterError  # noqa: E402

OPERATIONS = [
    operations.attend(2, 32, 8, 16, 50, kind="attend", capacity=20, ratio=4, count=6),
    operations.choose_rows(2, 32, 40, 90),
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
