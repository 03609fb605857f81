"""What steps and prompts leave in rings and rows, on a GPU, at the model's real shapes."""

from __future__ import annotations

import dataclasses

import gates
import pytest

pytest.importorskip("triton", reason="TRITON MISSING: NO KERNEL GATE RUNS HERE")

import rings
import torch
from rings import Layer

from kernels import passage
from kernels.bench.shape import HEAD, HEADS, ROTARY

pytestmark = pytest.mark.gpu
BF16, FP32 = torch.bfloat16, torch.float32
WINDOW = Layer(
    q_rank=1024, heads=HEADS, head_dim=HEAD, pairs=ROTARY // 2, slots=136, dtype=BF16, stored=BF16
)
SPARSE = dataclasses.replace(WINDOW, main=(4, HEAD), keys=(4, 128), index_heads=64)
DENSE = dataclasses.replace(WINDOW, main=(128, HEAD), overlapping=False)
PACKED = [dataclasses.replace(one, rounds=True, packed=True) for one in (SPARSE, DENSE)]
LAYERS = [WINDOW, SPARSE, DENSE, dataclasses.replace(SPARSE, dtype=FP32, stored=FP32)]
STARTS = [0, 2, 125]
STEPS = [
    *(rings.intake(layer, start) for layer in LAYERS for start in STARTS),
    *(rings.prepare(layer, start) for layer in LAYERS for start in STARTS),
    rings.intake(WINDOW, 5, "rows"),
    rings.extend(dataclasses.replace(WINDOW, slots=128), 3, 125, 4),
]
OF_PACKED = [
    *(rings.prepare(layer, 125) for layer in PACKED),
    *(rings.passage(layer, 125, 127) for layer in PACKED),
]
PROMPTS = [rings.passage(layer, start, 127) for layer in LAYERS for start in STARTS]
BUFFERS = [op for op in (*STEPS, *PROMPTS, *OF_PACKED) if rings.buffers(op.inputs(1, "cpu"))]


@pytest.mark.parametrize("op", STEPS, ids=str)
@pytest.mark.parametrize("rows", [1, 6, 8])
def test_a_step_leaves_what_the_oracle_leaves(op: gates.Operation, rows: int) -> None:
    gates.check_values(op, rows, "cuda")


@pytest.mark.parametrize("op", PROMPTS, ids=str)
@pytest.mark.parametrize("rows", [1, 9, 160])
def test_a_prompt_leaves_what_the_oracle_leaves(op: gates.Operation, rows: int) -> None:
    gates.check_values(op, rows, "cuda")


@pytest.mark.parametrize("op", [*STEPS, *PROMPTS, *OF_PACKED], ids=str)
def test_bits_repeat_wherever_the_operands_lie(op: gates.Operation) -> None:
    first = gates.launch(op, 8, "cuda")
    gates.check_twice(first)
    gates.check_unaligned(first)


@pytest.mark.parametrize("op", BUFFERS, ids=str)
def test_nothing_is_written_but_the_slots_and_rows_of_the_step(op: gates.Operation) -> None:
    rings.check_places(op, 5, "cuda")


@pytest.mark.parametrize("layer", PACKED, ids=str)
@pytest.mark.parametrize("start", STARTS)
def test_packed_rows_are_left_with_the_numbers_of_plain_ones(layer: Layer, start: int) -> None:
    rings.check_packed(lambda one: rings.prepare(one, start), layer, "cuda", 8)
    rings.check_packed(lambda one: rings.passage(one, start, 127), layer, "cuda", 160)
    rings.check_steps(rings.prepare(layer, start), 8, "cuda")


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("start", [2, 121])
def test_a_row_does_not_know_what_shares_its_step(layer: Layer, rounds: bool, start: int) -> None:
    layer = dataclasses.replace(layer, rounds=rounds)
    rings.check_steps(rings.intake(layer, start), 8, "cuda")
    rings.check_steps(rings.prepare(layer, start), 8, "cuda")


@pytest.mark.parametrize("layer", LAYERS[1:], ids=str)
def test_what_is_rounded_is_the_rounding_of_what_is_not(layer: Layer) -> None:
    rings.check_rounded(dataclasses.replace(layer, stored=FP32), 121, "cuda")


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_a_prompt_leaves_what_steps_leave(layer: Layer) -> None:
    given = rings.passage(layer, 100, 127).inputs(48, "cuda")
    by_step, by_chunk = rings.clones(given), rings.clones(given)
    rings.take_steps(by_step, [8, 5, 8, 8, 3, 8, 8])
    for part in rings.parts(by_chunk, [31, 17]):
        passage.store(**rings.arguments(part), pools=rings.pools_of(part), reach=127)
    for a, b in zip(rings.buffers(by_step), rings.buffers(by_chunk), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5 if a.dtype == FP32 else 2.0**-7, atol=1e-5)


@pytest.mark.parametrize("layer", [*LAYERS, *PACKED], ids=str)
def test_one_graph_serves_every_position(layer: Layer) -> None:
    given = rings.passage(dataclasses.replace(layer, rounds=True), 0, 127).inputs(6, "cuda")
    held = rings.clones(given)
    rings.take_steps(held, [6])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rings.take_steps(held, [6])
    for position in (0, 3, 123, 255):
        fresh = rings.clones(given) | {"position": torch.tensor([position], device="cuda")}
        for a, b in zip(rings.buffers(held), rings.buffers(fresh), strict=True):
            a.copy_(b)
        held["position"].fill_(position)
        graph.replay()
        rings.take_steps(fresh, [6])
        for a, b in zip(rings.buffers(held), rings.buffers(fresh), strict=True):
            assert torch.equal(gates.bits(a), gates.bits(b)), position
