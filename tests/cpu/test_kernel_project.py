"""`kernels.project` under Triton's interpreter: both weights, one weight, odd shapes, splits."""

from __future__ import annotations

from dataclasses import replace

import gates
import pytest
import torch

gates.interpreter()

import operations  # noqa: E402

from kernels import fp8_linear, project  # noqa: E402
from kernels.project import Tile  # noqa: E402
from kernels.workspace import Workspace  # noqa: E402

BF16, FP32 = torch.bfloat16, torch.float32
SMALL = Tile(columns=16, splits8=2, splits16=3, step16=32, warps=2, stages=2)
CASES = [
    operations.project(64, 48, 256, tile=SMALL),
    operations.project(64, 48, 256, dtype=FP32, tile=SMALL),
    operations.project(30, 50, 330, tile=SMALL),
    operations.project(30, 50, 330, dtype=FP32, other=BF16, tile=SMALL),
    operations.project(32, 16, 192, other=FP32, tile=Tile(splits8=1, splits16=1)),
    operations.project(40, 0, 256, tile=SMALL),
    operations.project(32, 48, 256, tile=replace(SMALL, early=True)),
]


@pytest.mark.parametrize("op", CASES, ids=str)
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_both_products_equal_those_of_the_oracle(op: gates.Operation, rows: int) -> None:
    gates.check_values(op, rows, "cpu")


@pytest.mark.parametrize("op", CASES, ids=str)
def test_rows_do_not_know_of_each_other_and_bits_repeat(op: gates.Operation) -> None:
    gates.check_rows(op, "cpu")
    first = gates.launch(op, 3, "cpu")
    gates.check_twice(first)
    gates.check_unaligned(first)
    gates.check_empty(op, "cpu")


def test_the_first_product_has_the_bits_it_has_alone() -> None:
    inputs = CASES[0].inputs(5, "cpu")
    alone = fp8_linear.Tile(rows=8, columns=16, splits=2, warps=2, stages=2)
    want = fp8_linear.multiply(inputs["x"], inputs["weight8"], inputs["scale8"], tile=alone)
    assert torch.equal(CASES[0].run(inputs)[0], want)


def test_a_workspace_and_buffers_serve_launch_after_launch() -> None:
    inputs = CASES[2].inputs(4, "cpu")
    want = project.project(**inputs, tile=SMALL)
    workspace = Workspace.on("cpu", parts=1 << 14, arrivals=16)
    out = torch.full((4, 30), float("nan"), dtype=BF16), torch.full((4, 50), float("nan"))
    for dirt in (float("nan"), 1e9):
        workspace.parts.fill_(dirt)
        got = project.project(**inputs, out=out, tile=SMALL, workspace=workspace)
        for g, o, w in zip(got, out, want, strict=True):
            assert g is o
            assert torch.equal(g, w)
        assert not workspace.arrivals.any()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"x": torch.zeros(9, 256, dtype=BF16)}, "9 rows are no step"),
        ({"weight16": torch.zeros(4, 255)}, "255 channels, not 256"),
        ({"weight16": torch.zeros(4, 256, dtype=torch.float16)}, "not BF16 or float32"),
        ({"weight16": torch.zeros(256, 4).t()}, "not contiguous"),
        ({"weight8": torch.zeros(64, 256)}, "not E4M3"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(
    change: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        project.project(**CASES[0].inputs(2, "cpu") | change)


def test_an_output_over_an_operand_or_over_the_other_is_refused() -> None:
    inputs = CASES[1].inputs(2, "cpu")
    room = torch.zeros(2, 64)
    with pytest.raises(ValueError, match="shares memory"):
        project.project(**inputs, out=(room, room.flatten()[:96].view(2, 48)))
    with pytest.raises(ValueError, match="shares memory"):
        project.project(**inputs, out=(inputs["x"].flatten()[:128].view(2, 64), room[:, :48]))
