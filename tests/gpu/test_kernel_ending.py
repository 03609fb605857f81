"""A layer's first products and the end of a step on a GPU, at the model's real shapes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import gates
import pytest

pytest.importorskip("triton", reason="TRITON MISSING: NO KERNEL GATE RUNS HERE")

import operations
import torch
from operations.draws import fp8
from torch import Tensor

from kernels import accept, beside, fp8_linear, lm_head, markov, project, router, sample
from kernels.bench import chain, rings
from kernels.bench.ending import RANK, SIDES, VOCABULARY
from kernels.bench.shape import CHOSEN, EXPERTS, HIDDEN, INNER
from kernels.oracle import accept as plain_accept, sample as plain_sample
from kernels.workspace import Workspace

pytestmark = pytest.mark.gpu
BF16, FP32 = torch.bfloat16, torch.float32


def apart(columns: int, splits: int, parts: int, early: bool) -> fp8_linear.Tile:
    """A tile whose warps share channels."""
    return fp8_linear.Tile(8, columns, splits, parts, 3, parts, early)


PRODUCTS = [
    operations.fp8_linear(4096, 8192, tile=apart(32, 1, 8, False)),
    operations.fp8_linear(8192, 4096, groups=8, tile=apart(16, 2, 4, True)),
    operations.fp8_linear(1000, 1104, tile=apart(16, 2, 2, True)),
    operations.fp8_linear(1000, 1111, dtype=FP32, tile=apart(32, 2, 4, False)),
]
STEPS = [
    *(operations.project(1536, side, HIDDEN) for side in SIDES.values()),
    operations.project(1536, 2624, HIDDEN, tile=project.Tile(early=False)),
    operations.project(1000, 333, 1111),
    operations.project(512, 96, 1024, dtype=FP32),
    operations.project(512, 96, 1024, dtype=FP32, other=BF16),
    operations.route(EXPERTS, HIDDEN, CHOSEN),
    operations.route(EXPERTS, HIDDEN, CHOSEN, vocabulary=1000, tile=router.Tile(early=False)),
    operations.route(EXPERTS, HIDDEN, CHOSEN, tile=router.Tile(splits=1, parts=1)),
    operations.beside(EXPERTS, HIDDEN, INNER, CHOSEN),
    operations.beside(EXPERTS, HIDDEN, INNER, CHOSEN, tile=beside.Tile(shared=16, early=False)),
    operations.beside(37, 512, 272, 3, vocabulary=1000, dtype=FP32),
    operations.route(EXPERTS, 512, CHOSEN, dtype=FP32),
    operations.route(37, 111, 3, gate=FP32),
    operations.lm_head(VOCABULARY, 256),
    operations.lm_head(8200, HIDDEN),
    operations.lm_head(1000, 111, dtype=FP32),
]
DRAFTS = [
    operations.markov(VOCABULARY, RANK, HIDDEN),
    operations.markov(VOCABULARY, RANK, HIDDEN, tile=markov.Tile(tokens=64, early=True)),
    operations.markov(1000, 100, 111, dtype=FP32),
]


@pytest.fixture(autouse=True)
def _memory() -> Iterator[None]:
    yield
    torch.cuda.empty_cache()


@pytest.mark.parametrize("op", [*PRODUCTS, *STEPS], ids=str)
@pytest.mark.parametrize("rows", [1, 6, 8])
def test_a_step_equals_the_oracle(op: gates.Operation, rows: int) -> None:
    gates.check_values(op, rows, "cuda")


@pytest.mark.parametrize("op", [*PRODUCTS, *STEPS], ids=str)
def test_the_rows_of_a_step_do_not_know_of_each_other(op: gates.Operation) -> None:
    gates.check_rows(op, "cuda")


@pytest.mark.parametrize("op", [*PRODUCTS, *STEPS], ids=str)
def test_bits_repeat_wherever_the_operands_lie(op: gates.Operation) -> None:
    first = gates.launch(op, 8, "cuda")
    gates.check_twice(first)
    gates.check_unaligned(first)
    gates.check_empty(op, "cuda")


@pytest.mark.parametrize("op", DRAFTS, ids=str)
def test_a_drafted_slot_equals_the_oracle_and_its_bits_repeat(op: gates.Operation) -> None:
    gates.check_values(op, 1, "cuda")
    first = gates.launch(op, 1, "cuda")
    gates.check_twice(first)


def replayed(body: Callable[[], Tensor]) -> Tensor:
    """What `body` leaves when a graph of it is replayed twice."""
    body()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = body()
    gates.poison(kept)
    graph.replay()
    graph.replay()
    return kept.clone()


@pytest.mark.parametrize("warps", [2, 4])
def test_a_chain_that_begins_early_has_the_bits_of_one_that_waits(warps: int) -> None:
    generator = torch.Generator().manual_seed(1)
    weights = [tuple(t.cuda() for t in fp8(generator, 2048, 2048)) for _ in range(12)]
    x = torch.randn(6, 2048, generator=generator).to(BF16).cuda()
    workspace = Workspace.on("cuda")

    def chain(early: bool) -> Tensor:
        tile = fp8_linear.Tile(8, 32, 4, warps, 3, early=early)
        y = x
        for weight, scale in weights:
            y = fp8_linear.multiply(y, weight, scale, tile=tile, workspace=workspace)
        return y

    want = chain(False)
    assert want.isfinite().all()
    for _ in range(5):
        assert torch.equal(replayed(lambda: chain(True)), want)
        assert not workspace.arrivals.any()


@pytest.mark.parametrize("rows", [1, 6])
def test_a_layer_that_begins_early_has_the_bits_of_one_that_waits(rows: int) -> None:
    layer, weights = rings.LAYERS["sparse"](rows), [chain.Weights.random() for _ in range(3)]
    x = torch.randn(rows, HIDDEN, device="cuda", dtype=BF16)
    workspace = Workspace.on("cuda")

    def layers(early: bool) -> Tensor:
        step, y = chain.Step(layer, workspace, early), x
        for each in weights:
            y = step.run(y, each)
            y = y / y.abs().amax(-1, keepdim=True)
        return y

    want = layers(False)
    assert want.isfinite().all()
    for _ in range(5):
        assert torch.equal(replayed(lambda: layers(True)), want)
    assert not workspace.arrivals.any()


def test_a_block_of_drafts_in_one_graph_reads_each_token_on_the_device() -> None:
    op = operations.markov(VOCABULARY, RANK, HIDDEN)
    inputs = op.inputs(1, "cuda", seed=5)
    base = torch.randn(5, VOCABULARY, device="cuda")
    tokens = torch.zeros(6, dtype=torch.int64, device="cuda")
    workspace = Workspace.on("cuda")

    def block() -> Tensor:
        for slot in range(5):
            previous = tokens[slot : slot + 1]
            given = inputs | {"base": base[slot], "previous": previous}
            tokens[slot + 1 :][:1].copy_(markov.step(**given, workspace=workspace).token)
        return tokens[1:].clone()

    got = replayed(block)
    token = tokens[:1].clone()
    for slot in range(5):
        token = op.oracle(**inputs | {"base": base[slot], "previous": token}).token
        assert torch.equal(got[slot : slot + 1], token)


def test_tokens_are_drawn_from_the_softmax_and_are_those_of_the_oracle() -> None:
    scores = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5, -3.0], device="cuda").expand(60_000, -1)
    key = [torch.tensor([given], device="cuda") for given in (0, 11, 0.8)]
    drawn = torch.cat([sample.pick(part.contiguous(), *key) for part in scores.split(20_000)])
    want = torch.softmax(scores[0].double() / 0.8, 0) * 20_000
    for part in drawn.split(20_000):
        assert torch.equal(part, drawn[:20_000])  # the same positions
    chi_square = ((torch.bincount(drawn[:20_000], minlength=6) - want) ** 2 / want).sum()
    assert chi_square < 25.7  # five degrees of freedom, one in ten thousand; the seed is fixed
    assert torch.equal(drawn[:500], plain_sample.pick(scores[:500].contiguous(), *key))


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
def test_the_real_vocabulary_draws_the_oracles_tokens_at_every_width(temperature: float) -> None:
    op = operations.pick(VOCABULARY, temperature=temperature)
    gates.check_values(op, 8, "cuda")
    first = gates.launch(op, 8, "cuda")
    gates.check_twice(first)
    inputs = op.inputs(8, "cuda")
    (whole,) = op.run(inputs)
    for start in range(8):
        given = inputs | {"scores": inputs["scores"][start:].clone()}
        assert torch.equal(op.run(given | {"ahead": 1 + start})[0], whole[start:])


def test_every_short_round_ends_as_the_oracles() -> None:
    for m in (1, 2, 3, 4):
        for drafts in itertools.product((0, 1), repeat=m - 1):
            for targets in itertools.product((0, 1), repeat=m):
                ends = []
                for end in (accept.accept, plain_accept.accept):
                    tokens = torch.tensor([9, *drafts], device="cuda")
                    finite = torch.ones(m, dtype=torch.bool, device="cuda")
                    position = torch.tensor([2**33], device="cuda")
                    report = end(tokens, torch.tensor(targets, device="cuda"), finite, position)
                    ends.append((report, tokens, position))
                for ours, theirs in zip(*ends, strict=True):
                    assert torch.equal(ours, theirs)


def test_scores_of_the_whole_vocabulary_name_their_own_best() -> None:
    head = torch.empty(VOCABULARY, HIDDEN, device="cuda", dtype=BF16).normal_(std=HIDDEN**-0.5)
    x = torch.randn(8, HIDDEN, device="cuda", dtype=BF16)
    found = lm_head.scores(x, head)
    torch.testing.assert_close(found.scores, x.float() @ head.float().t(), rtol=1e-4, atol=1e-4)
    top = found.scores.topk(2, -1).values
    assert torch.equal(found.scores.gather(1, found.best.token[:, None]), top[:, :1])
    assert torch.equal(found.best.margin, top[:, 0] - top[:, 1])
    assert found.best.finite.all()
