"""`kernels.router.route` under Triton's interpreter: gate, affinity and choice in one launch."""

from __future__ import annotations

from dataclasses import replace

import gates
import pytest
import torch

gates.interpreter()

import operations  # noqa: E402

from kernels import router  # noqa: E402
from kernels.router import Tile  # noqa: E402
from kernels.workspace import Workspace  # noqa: E402

BF16, FP32 = torch.bfloat16, torch.float32
SMALL = Tile(columns=16, splits=2, step=16, warps=2, stages=2, parts=2)
CASES = [
    operations.route(32, 128, 3, tile=SMALL),
    operations.route(37, 100, 6, dtype=FP32, tile=SMALL),
    operations.route(
        16, 64, 2, gate=FP32, tile=Tile(columns=16, splits=1, step=64, warps=4, parts=1)
    ),
    operations.route(20, 64, 3, vocabulary=9, tile=replace(SMALL, early=True)),
    operations.route(150, 64, 6, dtype=FP32, tile=SMALL),
    operations.route(20, 70, 6, vocabulary=5, dtype=FP32, gate=BF16, tile=SMALL),
]


@pytest.mark.parametrize("op", CASES, ids=str)
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_choice_and_weights_equal_those_of_the_oracle(op: gates.Operation, rows: int) -> None:
    gates.check_values(op, rows, "cpu")


@pytest.mark.parametrize("op", CASES, ids=str)
def test_rows_do_not_know_of_each_other_and_bits_repeat(op: gates.Operation) -> None:
    gates.check_rows(op, "cpu")
    first = gates.launch(op, 3, "cpu")
    gates.check_twice(first)
    gates.check_unaligned(first)
    gates.check_empty(op, "cpu")


def test_one_launch_chooses_what_two_did() -> None:
    inputs = CASES[1].inputs(7, "cpu")
    logits = inputs["x"] @ inputs["gate"].t()
    chosen, weights = router.choose(logits, inputs["bias"], 6, scale=1.5)
    got = CASES[1].run(inputs)
    assert torch.equal(got[0], chosen)
    torch.testing.assert_close(got[1], weights)


def test_of_equal_experts_the_lower_comes_first() -> None:
    gate = torch.tensor([1.0, 2.0, 2.0, -1.0, 2.0, 1.0])[:, None] * torch.eye(1, 32)
    x = torch.eye(1, 32)
    chosen, weights = router.route(x, gate, torch.zeros(6), None, None, count=4, scale=1.0)
    assert chosen.tolist() == [[1, 2, 4, 0]]
    assert weights[0, 0] == weights[0, 1] == weights[0, 2] > weights[0, 3]


def test_experts_chosen_from_rows_that_are_no_numbers_stay_in_the_bank() -> None:
    inputs = CASES[1].inputs(2, "cpu")
    inputs["x"].fill_(float("nan"))
    chosen, _ = CASES[1].run(inputs)
    assert ((chosen >= 0) & (chosen < 37)).all()
    assert all(len(set(row)) == 6 for row in chosen.tolist())


def test_a_workspace_serves_launch_after_launch() -> None:
    inputs = CASES[0].inputs(5, "cpu")
    want = router.route(**inputs, tile=SMALL)
    workspace = Workspace.on("cpu", parts=2 * 32 * 8, arrivals=1)
    for dirt in (float("nan"), 1e9):
        workspace.parts.fill_(dirt)
        got = router.route(**inputs, tile=SMALL, workspace=workspace)
        assert all(torch.equal(g, w) for g, w in zip(got, want, strict=True))
        assert not workspace.arrivals.any()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"x": torch.zeros(9, 128, dtype=BF16)}, "9 rows are no step"),
        ({"gate": torch.zeros(32, 127)}, "127 channels, not 128"),
        ({"bias": torch.zeros(31)}, "a bias \\(31,\\) for 32 experts"),
        ({"count": 33}, "33 of 32 experts"),
        ({"bias": None}, "experts need tokens and a table"),
        ({"tokens": torch.zeros(2, dtype=torch.int64)}, "a bias or a table, not both"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(
    change: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        router.route(**CASES[0].inputs(2, "cpu") | change)
