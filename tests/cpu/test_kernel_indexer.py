"""The indexer's choice under Triton's interpreter."""

from __future__ import annotations

from unittest.mock import patch

import gates
import pytest
import torch

gates.interpreter()

import operations  # noqa: E402
from operations import parts  # noqa: E402

from kernels import indexer  # noqa: E402
from kernels.oracle import indexer as plain  # noqa: E402
from kernels.workspace import Workspace  # noqa: E402

FP32 = torch.float32
SLICED = indexer.Tile(keys=32, rows=3, warps=4, slice=32, search_warps=4)
SHARED = indexer.Step(keys=16, programs=8, slice=32, warps=4)
STEPS = [
    operations.choose_rows(4, 16, 100, 0),
    operations.choose_rows(4, 16, 100, 60),
    operations.choose_rows(3, 20, 90, 300, dtype=FP32),
    operations.choose_rows(20, 32, 150, 470, count=5),
    operations.choose_rows(4, 16, 10, 30, count=16),
    operations.choose_rows(4, 16, 130, 500, tile=SLICED),
    operations.choose_rows(4, 16, 200, 124, count=9, tile=SLICED),
    operations.choose_rows(4, 16, 200, 200, count=24, dtype=FP32, tile=SLICED),
    operations.choose_rows(4, 16, 130, 500, tile=SHARED),
    operations.choose_rows(4, 16, 200, 124, count=9, tile=SHARED),
    operations.choose_rows(4, 16, 200, 200, count=24, dtype=FP32, tile=SHARED),
]

PACKED = [
    operations.choose_rows(4, 32, 100, 60, packed=True),
    operations.choose_rows(20, 64, 150, 470, count=5, dtype=FP32, packed=True),
    operations.choose_rows(4, 32, 130, 500, tile=SLICED, packed=True),
    operations.choose_rows(4, 32, 200, 124, count=9, tile=SHARED, packed=True),
    operations.choose_rows(4, 32, 10, 30, count=16, packed=True),
]


@pytest.mark.parametrize("op", [*STEPS, *PACKED], ids=str)
@pytest.mark.parametrize("rows", [1, 8, 19])
def test_rows_equal_those_of_the_oracle(op: gates.Operation, rows: int) -> None:
    gates.check_values(op, rows, "cpu")


@pytest.mark.parametrize("op", [STEPS[1], STEPS[6], STEPS[9], PACKED[0]], ids=str)
def test_rows_do_not_know_of_each_other_and_bits_repeat(op: gates.Operation) -> None:
    gates.check_rows(op, "cpu")
    first = gates.launch(op, 3, "cpu")
    gates.check_twice(first)
    gates.check_unaligned(first)
    gates.check_empty(op, "cpu")


def test_an_output_under_an_operand_is_refused() -> None:
    for op in (STEPS[1], PACKED[0]):
        gates.check_aliasing(gates.launch(op, 3, "cpu"))


@pytest.mark.parametrize("op", PACKED, ids=str)
@pytest.mark.parametrize("rows", [1, 8, 19])
def test_packed_keys_choose_the_rows_of_plain_ones(op: gates.Operation, rows: int) -> None:
    parts.check_packed(op, rows, "cpu")


@pytest.mark.parametrize("start", [62, 63, 127, 128, 255, 399])
def test_a_search_of_any_number_of_scores_finds_the_best(start: int) -> None:
    """Around the numbers where a row first chooses, fills a slice, or spills into the next."""
    for tile in (None, SLICED, SHARED):
        gates.check_values(operations.choose_rows(2, 16, 100, start, tile=tile), 4, "cpu")


@pytest.mark.parametrize("start", [3, 100, 130, 399])
def test_a_step_leaves_the_workspace_to_the_next(start: int) -> None:
    """Where nothing, one slice or several are searched."""
    workspace = Workspace.on("cpu", parts=0, arrivals=40)
    op = operations.choose_rows(2, 16, 100, start, tile=SHARED)
    inputs = op.inputs(4, "cpu")
    (want,) = op.run(inputs)
    for _ in range(2):
        (got,) = op.run(inputs, workspace=workspace)
        assert torch.equal(got, want)
        assert not workspace.arrivals.any()


def test_many_rows_are_scored_in_blocks() -> None:
    op = operations.choose_rows(4, 16, 100, 60)
    with patch.object(indexer, "_SCORES", 800):
        gates.check_values(op, 30, "cpu")


@pytest.mark.parametrize(
    "values",
    [
        [0.0] * 40,
        [-0.0, 0.0] * 20,
        [1.0] * 20 + [2.0] * 20,
        [float(2**i) for i in range(-20, 20)],
        [-float(i % 7) for i in range(40)],
        [1e-45, 0.0, -1e-45, 3e38, -3e38] * 8,
        [1.0 + i * 2**-23 for i in range(40)],
    ],
)
def test_scores_of_every_size_are_searched_exactly(values: list[float]) -> None:
    keys = torch.tensor(values)[:, None] * torch.eye(1, 16)
    queries = torch.zeros(1, 2, 16)
    queries[0, 0, 0], queries[0, 1, 0] = 1.0, -1.0
    weights, position = torch.tensor([[1.0, -1.0]]), torch.tensor([39])
    got = indexer.choose(queries, keys, weights, position, ratio=1, count=11)
    want = plain.choose(queries, keys, weights, position, ratio=1, count=11)
    assert torch.equal(got, want)


def test_scores_that_are_no_numbers_still_choose_rows_that_exist() -> None:
    keys = torch.full((40, 16), float("nan"))
    got = indexer.choose(
        torch.ones(1, 2, 16), keys, torch.ones(1, 2), torch.tensor([39]), ratio=1, count=8
    )
    assert got.unique().numel() == 8
    assert ((got >= 0) & (got < 40)).all()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"keys": torch.zeros(100, 20, dtype=torch.bfloat16)}, "do not fit the queries"),
        ({"weights": torch.zeros(3, 5)}, "not .rows, heads."),
        ({"weights": torch.zeros(3, 4, dtype=torch.float64)}, "not float32"),
        ({"position": torch.zeros(1, dtype=torch.int32)}, "int64"),
        ({"count": 0}, "0 of every 4"),
        ({"count": 40, "tile": SLICED}, "slices of 32 for 40"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(
    change: dict[str, object], sentence: str
) -> None:
    op = operations.choose_rows(4, 16, 100, 60)
    with pytest.raises(ValueError, match=sentence):
        op.run(op.inputs(3, "cpu") | change)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"keys.codes": torch.zeros(100, 32, dtype=torch.uint8)}, "2 groups"),
        ({"keys.codes": torch.zeros(100, 8, dtype=torch.uint8)}, "16 channels: no power of two"),
        ({"keys.scales": torch.zeros(99, 1, dtype=torch.uint8)}, "equally many lines"),
        ({"keys.tail": torch.zeros(100, 2)}, "packed keys have no tail"),
        ({"queries": torch.zeros(3, 4, 64)}, "keys of 32 channels, queries of 64"),
    ],
)
def test_packed_keys_that_do_not_fit_are_refused_in_one_sentence(
    change: dict[str, object], sentence: str
) -> None:
    op = PACKED[0]
    with pytest.raises(ValueError, match=sentence):
        op.run(op.inputs(3, "cpu") | change)
