"""The kernels' gates on a GPU, at the model's real shapes: what tests/cpu does at small ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import gates
import pytest

pytest.importorskip("triton", reason="TRITON MISSING: NO KERNEL GATE RUNS HERE")

import operations
import torch

from kernels import hyper, moe, moe_prefill
from kernels.bench.shape import (
    CHOSEN,
    EXPERTS,
    HEAD,
    HEADS,
    HIDDEN,
    INNER,
    LINEARS,
    ROTARY,
    STREAMS,
)

pytestmark = pytest.mark.gpu
BF16, FP32 = torch.bfloat16, torch.float32
BANK = 24  # experts of a gate's bank: the kernels see no more of the others than their address

LINEAR = [operations.fp8_linear(x.n, x.k, groups=x.groups) for x in LINEARS]
ODD = [
    operations.fp8_linear(1000, 1111),
    operations.fp8_linear(1000, 1111, dtype=FP32),
    operations.fp8_linear(1, 1),
]
STEP = [
    operations.gate_up(BANK, HIDDEN, INNER, CHOSEN),
    operations.gate_up(BANK, 1056, 1008, CHOSEN, repeat=True),
    operations.gate_up(BANK, 512, 256, CHOSEN, dtype=FP32),
    operations.gate_up(BANK, 512, 256, CHOSEN, tile=replace(moe.GATE_UP, early=False)),
    operations.gate_up(BANK, HIDDEN, INNER, CHOSEN, tile=moe.Tile(16, 128, 1, 2, 4, parts=2)),
    operations.gate_up(BANK, 1056, 1008, CHOSEN, tile=moe.Tile(16, 128, 1, 4, 3, parts=4)),
    operations.down(BANK, HIDDEN, INNER, CHOSEN),
    operations.down(BANK, HIDDEN, INNER, CHOSEN, tile=moe.Tile(32, 128, 1, 2, 4, parts=2)),
    operations.down(BANK, 512, 256, CHOSEN, dtype=FP32, tile=moe.Tile(32, 64, 1, 2, 3, parts=2)),
    operations.down(BANK, 512, 256, CHOSEN, tile=replace(moe.DOWN, early=True)),
    operations.down(BANK, 1000, 1056, CHOSEN, repeat=True),
]
ROWS = [
    operations.rms_norm(HIDDEN, weight=True),
    operations.rms_norm(1000, weight=True, dtype=FP32),
    operations.rotate(HEADS, HEAD, ROTARY // 2, kind="inverse"),
    operations.rotate(HEADS, HEAD, ROTARY // 2, kind="normalised"),
    operations.rounding("cache_round", HEAD, rotary_dim=ROTARY),
    operations.rounding("fp4_round", HEADS, 128),
    operations.rounding("hadamard_fp4", HEADS, 128),
    operations.rounding("hadamard_fp4", 3, 128, dtype=FP32),
]
SEVERAL = [
    operations.choose(EXPERTS, CHOSEN),
    operations.look_up(EXPERTS, CHOSEN, 1000),
    operations.hyper("enter", STREAMS, HIDDEN),
    operations.hyper("advance", STREAMS, HIDDEN),
    operations.hyper("advance", STREAMS, 1000, dtype=FP32),
    operations.hyper("advance", STREAMS, HIDDEN, parts=CHOSEN + 1),
    operations.hyper("advance", STREAMS, HIDDEN, tile=replace(hyper.TILE, early=True)),
    operations.hyper("finish", STREAMS, HIDDEN),
]
LONG = [
    operations.fp8_linear(1536, HIDDEN),
    operations.fp8_linear(8192, 4096, groups=8),
    operations.fp8_linear(1000, 1111, dtype=FP32),
    operations.gate_up(BANK, 1024, 512, CHOSEN, kernel=moe_prefill.gate_up),
    operations.down(BANK, 1000, 512, CHOSEN, kernel=moe_prefill.down),
]
IN_TWO = [
    operations.gate_up(BANK, HIDDEN, INNER, CHOSEN, kernel=operations.in_two),
    operations.gate_up(BANK, 1056, 1008, CHOSEN, repeat=True, kernel=operations.in_two),
]
ALL = [*LINEAR, *ODD, *STEP, *IN_TWO, *ROWS, *SEVERAL]


@pytest.fixture(autouse=True)
def _memory() -> Iterator[None]:
    yield
    torch.cuda.empty_cache()


@pytest.mark.parametrize("op", ALL, ids=str)
@pytest.mark.parametrize("rows", [1, 6, 8])
def test_a_step_equals_the_oracle(op: gates.Operation, rows: int) -> None:
    gates.check_values(op, rows, "cuda")


@pytest.mark.parametrize("op", LONG, ids=str)
@pytest.mark.parametrize("rows", [9, 200])
def test_a_prefill_equals_the_oracle(op: gates.Operation, rows: int) -> None:
    gates.check_values(op, rows, "cuda")


@pytest.mark.parametrize("op", ALL, ids=str)
def test_the_rows_of_a_step_do_not_know_of_each_other(op: gates.Operation) -> None:
    gates.check_rows(op, "cuda")


@pytest.mark.parametrize("op", [*ALL, *LONG], ids=str)
def test_bits_repeat_wherever_the_operands_lie(op: gates.Operation) -> None:
    first = gates.launch(op, 8, "cuda")
    gates.check_twice(first)
    gates.check_unaligned(first)
    gates.check_empty(op, "cuda")


@pytest.mark.parametrize("op", [*LINEAR, *ODD, *STEP, *ROWS, *LONG], ids=str)
def test_only_the_output_is_written_and_no_operand_may_lie_under_it(op: gates.Operation) -> None:
    first = gates.launch(op, 3, "cuda")
    gates.check_out(first)
    gates.check_aliasing(first)


@pytest.mark.parametrize("op", [LINEAR[0], STEP[0], *STEP[3:6], *SEVERAL[3:6]], ids=str)
def test_a_graph_replays_the_same_bits(op: gates.Operation) -> None:
    inputs = op.inputs(6, "cuda")
    want = op.run(inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = gates.as_tuple(op.kernel(**inputs, **op.options))
    for tensor in got:
        gates.poison(tensor)
    graph.replay()
    for g, w in zip(got, want, strict=True):
        assert torch.equal(gates.bits(g), gates.bits(w))
