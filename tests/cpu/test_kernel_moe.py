"""The MXFP4 experts under Triton's interpreter: a step's form and the sorted one."""

from __future__ import annotations

import gates
import pytest
import torch

gates.interpreter()

import operations  # noqa: E402

from kernels import moe_prefill, mxfp4, narrow  # noqa: E402
from kernels.moe import Tile  # noqa: E402

BF16, FP32 = torch.bfloat16, torch.float32
SMALL = Tile(columns=32, step=256, shared=2, warps=2, stages=2)
NARROW = Tile(columns=16, step=128, shared=1, warps=1, stages=2)
APART = Tile(columns=16, step=128, shared=1, warps=2, stages=2, parts=2)
STEPS = [
    operations.gate_up(5, 64, 32, 3, dtype=FP32, tile=SMALL),
    operations.gate_up(4, 96, 48, 2, tile=SMALL),
    operations.gate_up(3, 256, 32, 2, dtype=FP32, tile=SMALL),
    operations.gate_up(4, 288, 16, 3, dtype=FP32, repeat=True, tile=SMALL),
    operations.down(5, 32, 64, 3, tile=SMALL),
    operations.down(4, 24, 96, 2, dtype=FP32, tile=SMALL),
    operations.down(4, 24, 160, 3, dtype=FP32, repeat=True, tile=NARROW),
    operations.gate_up(3, 256, 32, 2, dtype=FP32, tile=APART),
    operations.gate_up(4, 288, 16, 3, tile=APART),
    operations.down(4, 24, 160, 3, dtype=FP32, tile=APART),
]
IN_TWO = operations.gate_up(4, 288, 16, 3, repeat=True, kernel=operations.in_two, tile=APART)
SORTED = moe_prefill.Tile(rows=16, columns=16, step=64, warps=2, stages=2)
PREFILLS = [
    operations.gate_up(5, 64, 32, 3, dtype=FP32, kernel=moe_prefill.gate_up, tile=SORTED),
    operations.gate_up(4, 96, 48, 2, kernel=moe_prefill.gate_up, tile=SORTED),
    operations.down(5, 32, 160, 3, dtype=FP32, kernel=moe_prefill.down, tile=SORTED),
    operations.down(4, 24, 96, 2, kernel=moe_prefill.down, tile=SORTED),
]


@pytest.mark.parametrize("op", PREFILLS, ids=str)
@pytest.mark.parametrize("rows", [1, 9, 40])
def test_sorted_routes_equal_the_chosen_experts_one_by_one(op: gates.Operation, rows: int) -> None:
    gates.check_values(op, rows, "cpu")


def test_a_plan_covers_every_route_once_with_routes_of_one_expert_a_tile() -> None:
    for chosen in (
        torch.randint(0, 7, (50, 3)),
        torch.full((33, 2), 6),
        torch.zeros(1, 1, dtype=torch.int64),
    ):
        found = moe_prefill.plan(chosen, 7, 16)
        covered = []
        for expert, first, end in zip(found.expert, found.first, found.end, strict=True):
            if expert < 7:
                routes = found.order[first : min(first + 16, end)].tolist()
                assert routes
                assert (chosen.flatten()[routes] == expert).all()
                covered += routes
        assert sorted(covered) == list(range(chosen.numel()))


def test_a_plan_for_other_tiles_is_refused() -> None:
    inputs = PREFILLS[0].inputs(9, "cpu")
    routes = moe_prefill.plan(inputs["chosen"], 5, 32)
    with pytest.raises(ValueError, match="tiles of 32 rows, not 16"):
        PREFILLS[0].run(inputs, routes=routes)


@pytest.mark.parametrize("op", [*STEPS, IN_TWO], ids=str)
@pytest.mark.parametrize("rows", [1, 5, 8])
def test_a_step_equals_the_chosen_experts_one_by_one(op: gates.Operation, rows: int) -> None:
    gates.check_values(op, rows, "cpu")


@pytest.mark.parametrize("op", [*STEPS, *PREFILLS], ids=str)
def test_bits_repeat_and_only_the_output_is_written(op: gates.Operation) -> None:
    first = gates.launch(op, 3, "cpu")
    gates.check_twice(first)
    gates.check_out(first)
    gates.check_unaligned(first)
    gates.check_aliasing(first)
    gates.check_empty(op, "cpu")


@pytest.mark.parametrize("op", STEPS[::2], ids=str)
def test_the_rows_of_a_step_do_not_know_of_each_other(op: gates.Operation) -> None:
    gates.check_rows(op, "cpu")


def test_a_step_in_two_launches_has_the_bits_of_one() -> None:
    one = STEPS[8]
    inputs = one.inputs(5, "cpu")
    assert torch.equal(IN_TWO.run(inputs)[0], one.run(inputs)[0])


def test_every_row_on_the_same_experts_is_one_pass_over_them() -> None:
    op = STEPS[0]
    inputs = op.inputs(8, "cpu")
    inputs["chosen"] = inputs["chosen"][:1].repeat(8, 1)
    (got,) = op.run(inputs)
    torch.testing.assert_close(got, op.oracle(**inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("byte", narrow.E2M1_SCALES)
def test_scales_at_both_ends_of_the_range_are_exact(byte: int) -> None:
    op = STEPS[4]
    inputs = op.inputs(2, "cpu")
    codes, scale = inputs["w2"]
    scale.view(torch.uint8).fill_(byte)
    inputs |= operations.banked("w2", codes, scale)
    inputs["shared_scale"].view(torch.uint8).fill_(byte)
    (got,) = op.run(inputs)
    want = op.oracle(**inputs)
    assert want.any()
    torch.testing.assert_close(got / want.abs().max(), want / want.abs().max())


@pytest.mark.parametrize("byte", [39, 161])
def test_scales_outside_the_range_are_refused_at_load(byte: int) -> None:
    scale = torch.tensor([[[100], [byte]]], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    with pytest.raises(ValueError, match=r"leave 2\*\*-87 .. 2\*\*33"):
        mxfp4.pack(torch.zeros(1, 2, 16, dtype=torch.int8), scale)


@pytest.mark.parametrize(
    ("codes", "scale", "sentence"),
    [
        (torch.zeros(5, 64, 32), torch.zeros(5, 64, 2), "not bytes"),
        (torch.zeros(5, 64, 24, dtype=torch.int8), torch.zeros(5, 64, 1), "no whole groups"),
        (torch.zeros(5, 64, 32, dtype=torch.int8), torch.zeros(5, 64, 3), "do not fit codes"),
    ],
)
def test_what_is_no_bank_is_refused_in_one_sentence(
    codes: torch.Tensor, scale: torch.Tensor, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        mxfp4.pack(codes, scale)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"x": torch.zeros(9, 64), "chosen": torch.zeros(9, 3, dtype=torch.int64)}, "sort them"),
        ({"chosen": torch.zeros(2, 3)}, "the choice is torch.float32"),
        ({"weights": torch.zeros(2, 2)}, "do not fit the choice"),
        ({"shared": torch.zeros(64, 64)}, "shared expert is torch.float32"),
        ({"w13": (torch.zeros(5, 64, 16), None)}, "64 x 32 weights an expert, not 64 x 64"),
        ({"x": torch.zeros(2, 99)[:, :64]}, "x is not contiguous"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(
    change: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        STEPS[0].run(STEPS[0].inputs(2, "cpu") | change)
