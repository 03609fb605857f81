"""Attention of steps, long steps and draft blocks under Triton's interpreter."""

from __future__ import annotations

import gates
import pytest
import torch

gates.interpreter()

import operations  # noqa: E402
from operations import parts  # noqa: E402

from kernels import attention  # noqa: E402

FP32 = torch.float32
SMALL = attention.Tile(heads=16, keys=16, splits=4, warps=4)
STEPS = [
    operations.attend(2, 32, 8, 16, 0, kind="attend"),
    operations.attend(3, 40, 4, 20, 7, kind="attend", dtype=FP32),
    operations.attend(2, 32, 8, 16, 300, kind="attend", capacity=90, ratio=4, dtype=FP32),
    operations.attend(17, 32, 8, 16, 61, kind="attend", capacity=20, ratio=4, count=6),
    operations.attend(
        2, 32, 8, 16, 400, kind="attend", capacity=120, ratio=4, count=40, tile=SMALL
    ),
    operations.attend(2, 32, 8, 48, 200, kind="attend", capacity=200, ratio=8, tile=SMALL),
    operations.attend(2, 32, 8, 16, 5, kind="attend", capacity=200, ratio=8, tile=SMALL),
]
LONG = [
    operations.attend(2, 32, 8, 16, 0, kind="attend_long"),
    operations.attend(3, 40, 4, 20, 33, kind="attend_long", dtype=FP32),
    operations.attend(2, 32, 8, 16, 50, kind="attend_long", capacity=40, ratio=4),
    operations.attend(
        17, 32, 8, 16, 3, kind="attend_long", capacity=20, ratio=4, count=6, dtype=FP32
    ),
]
PACKED_STEPS = [
    operations.attend(
        2, 80, 8, 16, 300, kind="attend", capacity=90, ratio=4, dtype=FP32, packed=True
    ),
    operations.attend(3, 136, 4, 20, 61, kind="attend", capacity=20, ratio=4, count=6, packed=True),
    operations.attend(
        2, 72, 4, 16, 400, kind="attend", capacity=120, ratio=4, count=40, tile=SMALL, packed=True
    ),
    operations.attend(2, 80, 8, 16, 1, kind="attend", capacity=20, ratio=8, packed=True),
]
PACKED_LONG = [
    operations.attend(2, 80, 8, 16, 50, kind="attend_long", capacity=40, ratio=4, packed=True),
    operations.attend(
        17, 72, 4, 16, 3, kind="attend_long", capacity=20, ratio=4, count=6, dtype=FP32, packed=True
    ),
]
BLOCKS = [
    operations.attend(2, 32, 8, 16, length, kind="attend_block", tile=tile)
    for length, tile in ((0, None), (9, None), (16, SMALL), (77, None))
]


@pytest.mark.parametrize("op", [*STEPS, *PACKED_STEPS, *BLOCKS], ids=str)
@pytest.mark.parametrize("rows", [1, 5, 8])
def test_a_step_equals_the_oracle(op: gates.Operation, rows: int) -> None:
    gates.check_values(op, rows, "cpu")


@pytest.mark.parametrize("op", [*LONG, *PACKED_LONG], ids=str)
@pytest.mark.parametrize("rows", [1, 5, 30])
def test_a_long_step_equals_the_oracle(op: gates.Operation, rows: int) -> None:
    gates.check_values(op, rows, "cpu")


@pytest.mark.parametrize("op", [STEPS[1], STEPS[4], PACKED_STEPS[2]], ids=str)
def test_the_rows_of_a_step_do_not_know_of_each_other(op: gates.Operation) -> None:
    gates.check_rows(op, "cpu")


@pytest.mark.parametrize(
    "op", [STEPS[1], STEPS[4], LONG[1], BLOCKS[1], PACKED_STEPS[1], PACKED_LONG[0]], ids=str
)
def test_bits_repeat_wherever_the_operands_lie(op: gates.Operation) -> None:
    first = gates.launch(op, 3, "cpu")
    gates.check_twice(first)
    gates.check_unaligned(first)
    gates.check_empty(op, "cpu")


@pytest.mark.parametrize("op", [STEPS[4], LONG[2], BLOCKS[1], PACKED_STEPS[1]], ids=str)
def test_only_the_output_is_written_and_no_operand_may_lie_under_it(op: gates.Operation) -> None:
    first = gates.launch(op, 3, "cpu")
    gates.check_out(first)
    gates.check_aliasing(first)


@pytest.mark.parametrize("op", [*PACKED_STEPS, *PACKED_LONG], ids=str)
@pytest.mark.parametrize("rows", [1, 8])
def test_packed_rows_give_the_bits_of_plain_ones(op: gates.Operation, rows: int) -> None:
    parts.check_packed(op, rows, "cpu")


@pytest.mark.parametrize("start", [3, 15, 16, 250])
def test_a_state_of_any_age_gives_what_the_oracle_gives(start: int) -> None:
    op = operations.attend(
        2, 32, 8, 16, start, kind="attend", capacity=70, ratio=4, dtype=FP32, tile=SMALL
    )
    gates.check_values(op, 8, "cpu")


def test_a_row_of_a_long_step_does_not_know_where_the_step_began() -> None:
    op = operations.attend(2, 32, 8, 16, 20, kind="attend_long", capacity=20, ratio=4, count=6)
    inputs = op.inputs(12, "cpu")
    (whole,) = op.run(inputs)
    late = inputs | {
        "queries": inputs["queries"][7:],
        "kv": inputs["kv"][7:],
        "indices": inputs["indices"][7:],
        "position": inputs["position"] + 7,
    }
    (part,) = op.run(late)
    assert torch.equal(gates.bits(part), gates.bits(whole[7:]))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"ring": torch.zeros(18, 32, dtype=torch.bfloat16)}, "cannot hold 5 windows of 16"),
        ({"ring": torch.zeros(24, 32)}, "queries torch.bfloat16"),
        ({"sink": torch.zeros(3)}, "do not fit 2 heads"),
        ({"position": torch.zeros(1, dtype=torch.int32)}, "int64"),
        ({"ratio": 0}, "less than one"),
        ({"indices": torch.zeros(4, 6, dtype=torch.int32)}, "not int32 .rows, count."),
        ({"rows": None}, "indices of no rows"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(
    change: dict[str, object], sentence: str
) -> None:
    op = operations.attend(2, 32, 8, 16, 50, kind="attend", capacity=20, ratio=4, count=6)
    with pytest.raises(ValueError, match=sentence):
        op.run(op.inputs(5, "cpu") | change)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rows.tail": torch.zeros(20, 8)}, "do not fit the queries"),
        ({"rows.tail": torch.zeros(20, 6, dtype=torch.bfloat16)}, "do not fit the queries"),
        ({"rows.tail": torch.zeros(19, 8, dtype=torch.bfloat16)}, "equally many lines"),
        ({"rows.codes": torch.zeros(20, 128, dtype=torch.int8)}, "are not bytes"),
        ({"rows.codes": torch.zeros(20, 120, dtype=torch.uint8)}, "120 channels in groups of 64"),
        ({"rows.scales": torch.zeros(20, 1, dtype=torch.uint8)}, "1 scales a row for 2 groups"),
        ({"rows.tail": None}, "packed keys have no tail"),
    ],
)
def test_packed_rows_that_do_not_fit_are_refused_in_one_sentence(
    change: dict[str, object], sentence: str
) -> None:
    op = PACKED_STEPS[1]
    with pytest.raises(ValueError, match=sentence):
        op.run(op.inputs(5, "cpu") | change)
