"""`kernels.beside.route` under Triton's interpreter: the router, the shared expert beside."""

from __future__ import annotations

import gates
import pytest
import torch

gates.interpreter()

import operations  # noqa: E402

from kernels import beside  # noqa: E402
from kernels.beside import Tile  # noqa: E402

FP32 = torch.float32
SMALL = Tile(columns=16, splits=2, step=16, shared=8, warps=2, stages=2)
CASES = [
    operations.beside(32, 128, 32, 3, tile=SMALL),
    operations.beside(37, 100, 48, 6, dtype=FP32, tile=SMALL),
    operations.beside(20, 256, 16, 3, vocabulary=9, dtype=FP32, tile=SMALL),
]


@pytest.mark.parametrize("op", CASES, ids=str)
@pytest.mark.parametrize("rows", [1, 8])
def test_choice_and_hidden_rows_equal_those_of_the_oracle(op: gates.Operation, rows: int) -> None:
    gates.check_values(op, rows, "cpu")


@pytest.mark.parametrize("op", CASES, ids=str)
def test_rows_do_not_know_of_each_other_and_bits_repeat(op: gates.Operation) -> None:
    gates.check_rows(op, "cpu")
    first = gates.launch(op, 3, "cpu")
    gates.check_twice(first)
    gates.check_unaligned(first)
    gates.check_empty(op, "cpu")


def test_what_does_not_fit_is_refused_in_one_sentence() -> None:
    inputs = CASES[0].inputs(2, "cpu")
    with pytest.raises(ValueError, match=r"the shared expert .* is not"):
        beside.route(**inputs | {"shared": inputs["shared"][:, :64].contiguous()})
    with pytest.raises(ValueError, match="a program of 4 hidden channels is too small"):
        beside.route(**inputs, tile=Tile(shared=4))
