"""`kernels.fp8_linear` under Triton's interpreter: both forms, odd shapes, splits, groups."""

from __future__ import annotations

import gates
import pytest
import torch

gates.interpreter()

import operations  # noqa: E402

from kernels import fp8_linear  # noqa: E402
from kernels.fp8_linear import Tile, decode_tile  # noqa: E402
from kernels.workspace import Workspace  # noqa: E402

BF16, FP32 = torch.bfloat16, torch.float32
SPLIT = Tile(rows=8, columns=32, splits=3, warps=4, stages=2)
SHARED = Tile(rows=8, columns=16, splits=2, warps=4, stages=2, parts=4, early=True)
SHAPES = [
    operations.fp8_linear(128, 256),
    operations.fp8_linear(128, 256, dtype=FP32),
    operations.fp8_linear(96, 640, tile=SPLIT),
    operations.fp8_linear(130, 200, dtype=FP32),
    operations.fp8_linear(1, 1),
    operations.fp8_linear(257, 129),
    operations.fp8_linear(256, 128, groups=4, dtype=FP32),
    operations.fp8_linear(64, 1104, groups=2, tile=SHARED),
]
PREFILL = Tile(rows=16, columns=64, splits=1, warps=4, stages=2)
LONG = [
    operations.fp8_linear(192, 300, dtype=FP32, tile=PREFILL),
    operations.fp8_linear(256, 128, groups=4, tile=PREFILL),
    operations.fp8_linear(192, 128, groups=4, dtype=FP32),
]


@pytest.mark.parametrize("op", SHAPES, ids=str)
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_a_step_equals_the_product_with_the_decoded_weight(op: gates.Operation, rows: int) -> None:
    gates.check_values(op, rows, "cpu")


@pytest.mark.parametrize("op", LONG, ids=str)
@pytest.mark.parametrize("rows", [9, 16, 37])
def test_a_prefill_equals_the_product_with_the_decoded_weight(
    op: gates.Operation, rows: int
) -> None:
    gates.check_values(op, rows, "cpu")


@pytest.mark.parametrize("op", [SHAPES[0], SHAPES[2], SHAPES[6], SHAPES[7]], ids=str)
def test_the_rows_of_a_step_do_not_know_of_each_other(op: gates.Operation) -> None:
    gates.check_rows(op, "cpu")


@pytest.mark.parametrize(("op", "rows"), [(SHAPES[2], 3), (LONG[1], 20)], ids=str)
def test_bits_repeat_and_only_the_output_is_written(op: gates.Operation, rows: int) -> None:
    first = gates.launch(op, rows, "cpu")
    gates.check_twice(first)
    gates.check_out(first)
    gates.check_unaligned(first)
    gates.check_aliasing(first)


@pytest.mark.parametrize("op", [SHAPES[0], SHAPES[2]], ids=str)
def test_no_rows_are_no_work(op: gates.Operation) -> None:
    gates.check_empty(op, "cpu")


def test_a_workspace_serves_launch_after_launch_and_is_left_as_it_was() -> None:
    inputs = SHAPES[2].inputs(3, "cpu")
    want = fp8_linear.multiply(**inputs, tile=SPLIT)
    workspace = Workspace.on("cpu", parts=3 * 32 * 8 * 3, arrivals=3)
    for dirt in (float("nan"), 1e9):
        workspace.parts.fill_(dirt)
        got = fp8_linear.multiply(**inputs, tile=SPLIT, workspace=workspace)
        assert torch.equal(got, want)
        assert not workspace.arrivals.any()


def test_a_workspace_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="a workspace of 10 parts and 3 arrivals, not 2304 and 3"):
        fp8_linear.multiply(
            **SHAPES[2].inputs(3, "cpu"),
            tile=SPLIT,
            workspace=Workspace.on("cpu", parts=10, arrivals=3),
        )


def test_rows_may_lie_apart() -> None:
    inputs = SHAPES[1].inputs(5, "cpu")
    wide = torch.full((5, 300), float("nan"))
    wide[:, 20:276] = inputs["x"]
    assert torch.equal(
        fp8_linear.multiply(**inputs | {"x": wide[:, 20:276]}), fp8_linear.multiply(**inputs)
    )


@pytest.mark.parametrize("byte", [0, 1, 100, 160, 254])
def test_scales_reach_the_ends_of_the_exponent(byte: int) -> None:
    weight = torch.full((16, 128), 2.0**-9).to(torch.float8_e4m3fn)
    scale = torch.full((1, 1), byte, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    x = torch.zeros(1, 128)
    x[0, 5] = 2.0**9
    got = fp8_linear.multiply(x, weight, scale)
    assert (got.double() == 2.0 ** (byte - 127)).all()


def test_a_weight_with_codes_of_nan_is_refused_at_load() -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="2 codes of the weight are NaN"):
        fp8_linear.check_codes(codes)
    fp8_linear.check_codes(codes[:127])


def test_the_tile_follows_from_the_weight_and_fills_the_device() -> None:
    for n, k in [(1536, 4096), (32768, 1024), (8192, 4096), (4096, 8192), (4096, 2048)]:
        tile = decode_tile(n, k)
        assert -(-n // tile.columns) * tile.splits >= 128
        assert k // 128 // tile.splits >= 4


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"x": torch.zeros(2, 255, dtype=BF16)}, "255 channels, not 256"),
        ({"x": torch.zeros(2, 256, dtype=torch.float16)}, "not BF16"),
        ({"x": torch.zeros(256, 2, dtype=BF16).t()}, "last axis of x"),
        ({"scale": torch.zeros(1, 1).to(torch.float8_e8m0fnu)}, "do not fit"),
        ({"weight": torch.zeros(128, 256)}, "not E4M3"),
        ({"groups": 3}, "3 groups do not fit"),
        ({"out": torch.zeros(2, 127, dtype=BF16)}, "out is"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(
    change: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        fp8_linear.multiply(**SHAPES[0].inputs(2, "cpu") | change)
