"""Attention and the indexer on a GPU, at the model's real shapes and contexts."""

from __future__ import annotations

from collections.abc import Iterator

import gates
import pytest

pytest.importorskip("triton", reason="TRITON MISSING: NO KERNEL GATE RUNS HERE")

import operations
import torch
from operations import parts
from torch import Tensor

from kernels import attention, indexer
from kernels.bench.shape import HEAD, HEADS, ROTARY
from kernels.bench.state import COUNT, INDEX_HEAD, WINDOW
from kernels.workspace import Workspace

pytestmark = pytest.mark.gpu
FP32 = torch.float32
PAIRS = ROTARY // 2


def real(kind: str, start: int, **more: object) -> gates.Operation:
    """Attention at the model's sizes."""
    return operations.attend(HEADS, HEAD, PAIRS, WINDOW, start, kind=kind, **more)  # type: ignore[arg-type]


STEPS = [
    real("attend", 0),
    real("attend", 100),
    real("attend", 131_000, capacity=1024, ratio=128),
    real("attend", 3_000, capacity=8192, ratio=128),  # several turns of a split, most without keys
    real("attend", 1_500, capacity=32_768, ratio=4, count=COUNT),
    real("attend", 131_000, capacity=32_768, ratio=4, count=COUNT),
    real("attend", 131_000, capacity=1024, ratio=128, dtype=FP32),
    operations.attend(5, 40, 7, 20, 90, kind="attend", capacity=30, ratio=4, count=11),
]
TILES = [
    real("attend", 9_000, capacity=4096, ratio=4, count=COUNT, tile=attention.Tile(*tile))
    for tile in (
        (16, 32, 8, 8, 64, True),
        (32, 64, 16, 8, 512),
        (16, 16, 64, 4, 128, True),
        (16, 64, 32, 8),
    )
]
LONG = [
    real("attend_long", 0),
    real("attend_long", 5_000, capacity=64, ratio=128),
    real("attend_long", 5_000, capacity=2048, ratio=4, count=COUNT),
    real("attend_long", 300, capacity=2048, ratio=4, count=COUNT, dtype=FP32),
]
PACKED_STEPS = [
    real("attend", 131_000, capacity=1024, ratio=128, packed=True),
    real("attend", 3_000, capacity=8192, ratio=128, packed=True),
    real("attend", 131_000, capacity=32_768, ratio=4, count=COUNT, packed=True),
    real("attend", 1_500, capacity=32_768, ratio=4, count=COUNT, packed=True),
    real("attend", 131_000, capacity=1024, ratio=128, dtype=FP32, packed=True),
    operations.attend(5, 78, 7, 20, 90, kind="attend", capacity=30, ratio=4, count=11, packed=True),
]
PACKED_LONG = [
    real("attend_long", 5_000, capacity=64, ratio=128, packed=True),
    real("attend_long", 5_000, capacity=2048, ratio=4, count=COUNT, packed=True),
    real("attend_long", 300, capacity=2048, ratio=4, count=COUNT, dtype=FP32, packed=True),
]
PACKED_CHOICES = [
    operations.choose_rows(HEADS, INDEX_HEAD, 8_192, 9_000, count=COUNT, packed=True),
    operations.choose_rows(HEADS, INDEX_HEAD, 32_768, 131_000, count=COUNT, packed=True),
    operations.choose_rows(HEADS, INDEX_HEAD, 8_192, 32_000, count=COUNT, dtype=FP32, packed=True),
    operations.choose_rows(3, 32, 1_000, 2_000, count=100, packed=True),
    operations.choose_rows(
        HEADS, INDEX_HEAD, 32_768, 60_000, count=COUNT, packed=True,
        tile=indexer.Step(128, 132, 4096, 8, True),
    ),
]  # fmt: skip
BLOCKS = [real("attend_block", length) for length in (0, 77, 131_000)]
CHOICES = [
    operations.choose_rows(HEADS, INDEX_HEAD, 32_768, 1_000, count=COUNT),
    operations.choose_rows(HEADS, INDEX_HEAD, 8_192, 9_000, count=COUNT),
    operations.choose_rows(HEADS, INDEX_HEAD, 32_768, 2_045, count=COUNT),
    operations.choose_rows(HEADS, INDEX_HEAD, 32_768, 131_000, count=COUNT),
    operations.choose_rows(HEADS, INDEX_HEAD, 262_144, 700_000, count=COUNT),
    operations.choose_rows(HEADS, INDEX_HEAD, 8_192, 32_000, count=COUNT, dtype=FP32),
    operations.choose_rows(3, 40, 1_000, 2_000, count=100),
    *(
        operations.choose_rows(
            HEADS, INDEX_HEAD, 32_768, 60_000, count=COUNT, tile=indexer.Step(*tile)
        )
        for tile in ((16, 264, 2048, 4), (128, 132, 4096, 8, True), (32, 528, 16_384, 16, True))
    ),
]
ALL = [*STEPS, *TILES, *CHOICES, *PACKED_STEPS, *PACKED_CHOICES]


@pytest.fixture(autouse=True)
def _memory() -> Iterator[None]:
    yield
    torch.cuda.empty_cache()


@pytest.mark.parametrize("op", [*ALL, *BLOCKS], ids=str)
@pytest.mark.parametrize("rows", [1, 6, 8])
def test_a_step_equals_the_oracle(op: gates.Operation, rows: int) -> None:
    gates.check_values(op, rows, "cuda")


@pytest.mark.parametrize(
    "op", [*LONG, CHOICES[1], CHOICES[2], *PACKED_LONG, PACKED_CHOICES[0]], ids=str
)
@pytest.mark.parametrize("rows", [9, 200])
def test_a_prefill_equals_the_oracle(op: gates.Operation, rows: int) -> None:
    gates.check_values(op, rows, "cuda")


@pytest.mark.parametrize("op", ALL, ids=str)
def test_the_rows_of_a_step_do_not_know_of_each_other(op: gates.Operation) -> None:
    gates.check_rows(op, "cuda")


@pytest.mark.parametrize("op", [*ALL, *BLOCKS, *LONG, *PACKED_LONG], ids=str)
def test_bits_repeat_wherever_the_operands_lie(op: gates.Operation) -> None:
    first = gates.launch(op, 8, "cuda")
    gates.check_twice(first)
    gates.check_unaligned(first)
    gates.check_empty(op, "cuda")


@pytest.mark.parametrize("op", [STEPS[1], STEPS[5], LONG[2], BLOCKS[2]], ids=str)
def test_only_the_output_is_written_and_no_operand_may_lie_under_it(op: gates.Operation) -> None:
    first = gates.launch(op, 3, "cuda")
    gates.check_out(first)
    gates.check_aliasing(first)


@pytest.mark.parametrize("op", [*PACKED_STEPS, *PACKED_CHOICES], ids=str)
@pytest.mark.parametrize("rows", [1, 6])
def test_packed_rows_give_the_bits_of_plain_ones(op: gates.Operation, rows: int) -> None:
    parts.check_packed(op, rows, "cuda")


@pytest.mark.parametrize("op", [*PACKED_LONG, *PACKED_CHOICES[:2]], ids=str)
def test_packed_rows_give_a_prompt_the_bits_of_plain_ones(op: gates.Operation) -> None:
    parts.check_packed(op, 200, "cuda")


def test_one_graph_serves_every_position() -> None:
    g = torch.Generator(device="cuda").manual_seed(5)

    def random(*size: int) -> Tensor:
        return torch.randn(size, generator=g, device="cuda").bfloat16()

    rows, ratio = 6, 4
    cos, sin = (x.cuda() for x in operations.table(140_000, PAIRS))
    queries, ring, far = random(rows, HEADS, HEAD), random(WINDOW + 8, HEAD), random(32_768, HEAD)
    index, keys = random(rows, HEADS, INDEX_HEAD), random(32_768, INDEX_HEAD)
    weights, sink = random(rows, HEADS).float(), random(HEADS).float()
    position = torch.zeros(1, dtype=torch.int64, device="cuda")
    workspace = Workspace.on("cuda")

    def step() -> Tensor:
        chosen = indexer.choose(
            index, keys, weights, position, ratio=ratio, count=COUNT, workspace=workspace
        )
        return attention.attend(
            queries, ring, far, chosen, sink, cos, sin, position,
            window=WINDOW, ratio=ratio, scale=HEAD**-0.5,
        )  # fmt: skip

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = step()
    for start in (0, 1, 127, 130, 2_043, 2_047, 16_000, 131_000, 3):
        position.fill_(start)
        graph.replay()
        assert torch.equal(gates.bits(got), gates.bits(step())), start
        assert not workspace.arrivals.any(), start


def test_zeros_of_either_sign_are_equal_scores() -> None:
    keys = torch.zeros(1000, 16, device="cuda")
    keys[::3, 0] = -1.0
    keys[500] = 1.0
    queries = torch.ones(1, 2, 16, device="cuda")
    for sign in (1.0, -1.0):
        weights = torch.full((1, 2), sign, device="cuda")
        got = indexer.choose(
            queries, keys, weights, torch.tensor([999], device="cuda"), ratio=1, count=4
        )
        assert got.tolist() == [[0, 1, 2, 500] if sign > 0 else [0, 1, 2, 3]]
