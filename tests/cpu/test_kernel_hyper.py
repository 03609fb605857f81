"""The hyper-connections under Triton's interpreter: written, mixed, balanced, read, normalised."""

from __future__ import annotations

import gates
import pytest
import torch

gates.interpreter()

import operations  # noqa: E402

from kernels import hyper  # noqa: E402

FP32 = torch.float32
WIDE = hyper.Tile(channels=64, warps=1, read_warps=1)  # two slices, or one and a part
ALL = [
    operations.hyper("enter", 4, 64, dtype=FP32, iterations=4),
    operations.hyper("enter", 4, 100, iterations=3, tile=WIDE),
    operations.hyper("enter", 2, 40, dtype=FP32, iterations=1),
    operations.hyper("advance", 4, 72, dtype=FP32, iterations=3, tile=WIDE),
    operations.hyper("advance", 4, 128, iterations=2, tile=WIDE),
    operations.hyper("advance", 2, 33, dtype=FP32, iterations=3),
    operations.hyper("finish", 4, 72, dtype=FP32, tile=WIDE),
    operations.hyper("finish", 2, 128, tile=WIDE),
    operations.hyper("advance", 4, 72, iterations=2, parts=3, tile=WIDE),
    operations.hyper("finish", 4, 40, dtype=FP32, parts=2, tile=WIDE),
]


@pytest.mark.parametrize("op", ALL, ids=str)
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_rows_equal_those_of_the_oracle(op: gates.Operation, rows: int) -> None:
    gates.check_values(op, rows, "cpu")


@pytest.mark.parametrize("op", ALL[2::3], ids=str)
def test_rows_do_not_know_of_each_other_and_bits_repeat(op: gates.Operation) -> None:
    gates.check_rows(op, "cpu")
    first = gates.launch(op, 3, "cpu")
    gates.check_twice(first)
    gates.check_unaligned(first)
    gates.check_empty(op, "cpu")


def test_writing_and_entering_at_once_is_entering_what_was_written() -> None:
    op = ALL[3]
    inputs = op.inputs(4, "cpu")
    written, entry = hyper.advance(**inputs)
    rest = {k: v for k, v in inputs.items() if k not in ("streams", "output", "post", "comb")}
    again = hyper.enter(written, **rest)
    for got, want in zip(entry, again, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("rows", [1, 5])
def test_one_stream_expanded_enters_like_four_copies_of_it(rows: int) -> None:
    op = ALL[0]
    inputs = op.inputs(rows, "cpu")
    inputs["streams"] = inputs["streams"][:, :1].contiguous().expand(-1, 4, -1)
    expanded = op.run(inputs)
    copied = op.run(inputs | {"streams": inputs["streams"].contiguous()})
    for got, want in zip(expanded, copied, strict=True):
        assert torch.equal(got, want)


def test_parts_are_added_in_their_order() -> None:
    op = operations.hyper("advance", 4, 72, dtype=FP32, iterations=2, tile=WIDE)
    inputs = op.inputs(3, "cpu")
    parts = torch.randn(3, 5, 72)
    total = torch.zeros(3, 72)
    for part in parts.unbind(1):
        total += part
    in_one = op.run(inputs | {"output": total})
    for got, want in zip(op.run(inputs | {"output": parts}), in_one, strict=True):
        assert torch.equal(got, want)


def test_what_does_not_fit_is_refused_in_one_sentence() -> None:
    inputs = ALL[3].inputs(2, "cpu")
    for change, sentence in (
        ({"streams": torch.zeros(2, 3, 72)}, "3 streams"),
        ({"fn": torch.zeros(24, 288, dtype=torch.float64)}, "not float32"),
        ({"fn": torch.zeros(24, 4 * 71)}, "do not fit 4 streams of 72"),
        ({"output": torch.zeros(2, 71)}, "the output torch.float32"),
        ({"output": torch.zeros(2, 5, 71)}, "the output torch.float32"),
        ({"taps": torch.zeros(2, 71)}, "the taps do not fit"),
        ({"streams": torch.zeros(2, 8, 72)[:, ::2]}, "neither contiguous nor one"),
        ({"comb": torch.zeros(2, 4, 3)}, "weights of the write"),
        ({"norm": torch.zeros(71)}, "72 channels"),
    ):
        with pytest.raises(ValueError, match=sentence):
            hyper.advance(**inputs | change)
