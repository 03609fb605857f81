"""The calls that begin a layer's products and end a step, as they are timed at the real shapes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernels import accept, lm_head, markov, project, router, sample
from kernels.bench import shape
from kernels.bench.clock import rotations
from kernels.workspace import Workspace

Calls = list[Callable[[], object]]
Make = Callable[[Any], Calls]

VOCABULARY, RANK = 129280, 256
SIDES = {"csa": 2624, "hca": 1024, "window": 0}  # columns beside wq_a and wkv
_DOWN = 1536  # columns of wq_a and wkv


def every(rows: int) -> Iterator[tuple[str, float, Calls]]:
    """Name, bytes that one call must read, and calls, of a step of `rows` rows."""
    for name, needed, tile, make, _ in _all(rows):
        yield name, needed, make(tile)
    yield "accept", 0.0, _accept(rows)


def tunable(rows: int) -> Iterator[tuple[str, Make, list[Any]]]:
    """Name, calls for a tile, and the tiles to try."""
    for name, _, _, make, tiles in _all(rows):
        yield name, make, tiles


def _all(rows: int) -> Iterator[tuple[str, float, Any, Make, list[Any]]]:
    for kind, columns in SIDES.items():
        yield _project(rows, kind, columns)
    yield _route(rows)
    yield _head(rows)
    yield _markov()
    yield _pick(rows)


def _bf16(*size: int) -> Tensor:
    return torch.randn(size, device="cuda", dtype=torch.bfloat16)


def _project(rows: int, kind: str, columns: int) -> tuple[str, float, Any, Make, list[Any]]:
    k, workspace = shape.HIDDEN, Workspace.on("cuda")
    needed = _DOWN * k + columns * k * 2
    operands = []
    for _ in range(rotations(needed)):
        codes = torch.randint(127, (_DOWN, k), device="cuda", dtype=torch.uint8)
        scale = torch.randint(118, 122, (_DOWN // 128, k // 128), device="cuda", dtype=torch.uint8)
        side = _bf16(columns, k) if columns else None
        weight = codes.view(torch.float8_e4m3fn), scale.view(torch.float8_e8m0fnu)
        operands.append((_bf16(rows, k), *weight, side))

    def make(tile: project.Tile) -> Calls:
        return [partial(project.project, *o, tile=tile, workspace=workspace) for o in operands]

    tiles = [
        project.Tile(*tile)
        for tile in itertools.product(
            (16, 32, 64), (4, 8), (2, 4, 8), (64, 128), (1, 2, 4), (3, 4, 6), (False, True)
        )
    ]
    return f"project {kind}", needed, project.TILE, make, tiles


def _route(rows: int) -> tuple[str, float, Any, Make, list[Any]]:
    e, d, workspace = shape.EXPERTS, shape.HIDDEN, Workspace.on("cuda")
    needed = e * d * 2
    bias = torch.randn(e, device="cuda")
    operands = [(_bf16(rows, d), _bf16(e, d) * d**-0.5) for _ in range(rotations(needed))]

    def make(tile: router.Tile) -> Calls:
        return [
            partial(
                router.route, x, gate, bias, None, None,
                count=shape.CHOSEN, scale=1.5, tile=tile, workspace=workspace,
            )
            for x, gate in operands
        ]  # fmt: skip

    tiles = [
        router.Tile(*tile)
        for tile in itertools.product(
            (16, 32), (2, 4, 8, 16), (64, 128, 256), (1, 2, 4, 8), (2, 3, 4), (False, True)
        )
    ]
    return "route", needed, router.TILE, make, tiles


def _head(rows: int) -> tuple[str, float, Any, Make, list[Any]]:
    v, d, workspace = VOCABULARY, shape.HIDDEN, Workspace.on("cuda")
    head = torch.empty(v, d, device="cuda", dtype=torch.bfloat16).normal_(std=d**-0.5)
    xs = [_bf16(rows, d) for _ in range(4)]  # one head is many times any cache

    def make(tile: lm_head.Tile) -> Calls:
        return [partial(lm_head.scores, x, head, tile=tile, workspace=workspace) for x in xs]

    tiles = [
        lm_head.Tile(*tile)
        for tile in itertools.product((32, 64, 128), (64, 128, 256), (2, 4, 8), (3, 4, 6))
    ]
    return "lm_head", v * d * 2, lm_head.TILE, make, tiles


def _markov() -> tuple[str, float, Any, Make, list[Any]]:
    v, rank, d, workspace = VOCABULARY, RANK, shape.HIDDEN, Workspace.on("cuda")
    needed = v * rank * 2
    base, hidden, trust = torch.randn(v, device="cuda"), _bf16(d), _bf16(1, d + rank)
    pairs = [(_bf16(v, rank), _bf16(v, rank)) for _ in range(rotations(needed))]
    previous = torch.tensor([7], device="cuda")

    def make(tile: markov.Tile) -> Calls:
        return [
            partial(
                markov.step, base, previous, hidden, *pair, trust, tile=tile, workspace=workspace
            )
            for pair in pairs
        ]

    tiles = [
        markov.Tile(*tile)
        for tile in itertools.product((16, 32, 64, 128, 256), (1, 2, 4, 8), (False, True))
    ]
    return "markov", needed, markov.TILE, make, tiles


def _pick(rows: int) -> tuple[str, float, Any, Make, list[Any]]:
    workspace = Workspace.on("cuda")
    scores = torch.randn(rows, VOCABULARY, device="cuda")
    key = [torch.tensor([given], device="cuda") for given in (1000, 3, 0.8)]

    def make(tile: sample.Tile) -> Calls:
        return [partial(sample.pick, scores, *key, tile=tile, workspace=workspace)] * 32

    tiles = [sample.Tile(*tile) for tile in itertools.product((256, 512, 1024, 2048), (1, 2, 4, 8))]
    return "pick", 0.0, sample.TILE, make, tiles


def _accept(rows: int) -> Calls:
    tokens, targets = torch.randint(99, (2, rows), device="cuda")
    finite = torch.ones(rows, device="cuda", dtype=torch.bool)
    position = torch.tensor([1000], device="cuda")
    return [partial(accept.accept, tokens, targets, finite, position)] * 32
