"""The calls that begin a layer's products and end a step, as they are timed at the real shapes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from kernels import accept, lm_head, markov, project, router, sample
from kernels.bench import shape
from kernels.bench.clock import rotations
from kernels.bench.tunable import Calls, Make, Tunable
from kernels.workspace import Workspace

VOCABULARY, RANK = 129280, 256
SIDES = {"csa": 2624, "hca": 1024, "window": 0}  # columns beside wq_a and wkv
_DOWN = 1536  # columns of wq_a and wkv


def every(rows: int) -> Iterator[Tunable]:
    """Of a step of `rows` rows."""
    for kind, columns in SIDES.items():
        yield _project(rows, kind, columns)
    yield _route(rows)
    yield _head(rows)
    yield _markov()
    yield _pick(rows)


def accept_calls(rows: int) -> Calls:
    """The end of a round of `rows` rows."""
    tokens, targets = torch.randint(99, (2, rows), device="cuda")
    finite = torch.ones(rows, device="cuda", dtype=torch.bool)
    position = torch.tensor([1000], device="cuda")
    return [partial(accept.accept, tokens, targets, finite, position)] * 32


def _bf16(*size: int) -> Tensor:
    return torch.randn(size, device="cuda", dtype=torch.bfloat16)


def fp8(n: int, k: int) -> tuple[Tensor, Tensor]:
    """A weight [n, k] of positive codes, and scales from 2 ** -9 to 2 ** -6."""
    codes = torch.randint(127, (n, k), device="cuda", dtype=torch.uint8)
    scale = torch.randint(118, 122, (-(-n // 128), k // 128), device="cuda", dtype=torch.uint8)
    return codes.view(torch.float8_e4m3fn), scale.view(torch.float8_e8m0fnu)


def project_weights(columns: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """wq_a and wkv with their scales, and `columns` of more precision."""
    side = _bf16(columns, shape.HIDDEN) if columns else None
    return *fp8(_DOWN, shape.HIDDEN), side


def project_bytes(columns: int) -> float:
    """Bytes of `project_weights`."""
    return _DOWN * shape.HIDDEN + columns * shape.HIDDEN * 2


def _project(rows: int, kind: str, columns: int) -> Tunable:
    needed = project_bytes(columns)

    def prepare(most: int) -> Make:
        workspace = Workspace.on("cuda")
        operands = [
            (_bf16(rows, shape.HIDDEN), *project_weights(columns))
            for _ in range(rotations(needed, most=most))
        ]
        return lambda tile: [
            partial(project.project, *o, tile=tile, workspace=workspace) for o in operands
        ]

    tiles = [
        project.Tile(*tile)
        for tile in itertools.product(
            (16, 32, 64), (2, 4, 8), (2, 4, 8, 16), (64, 128, 256), (1, 2, 4), (2, 3, 4, 6),
            (False, True),
        )
    ]  # fmt: skip
    likely = [
        project.TILE,
        project.Tile(columns=32, splits8=4, splits16=4, step16=128, warps=2, stages=4),
        project.Tile(columns=64, splits8=8, splits16=8, step16=128, warps=4, stages=3),
        project.Tile(columns=16, splits8=4, splits16=4, step16=256, warps=1, stages=3),
    ]
    return Tunable(f"project {kind}", needed, likely, tiles, prepare)


def _route(rows: int) -> Tunable:
    e, d = shape.EXPERTS, shape.HIDDEN
    needed = e * d * 2

    def prepare(most: int) -> Make:
        workspace, bias = Workspace.on("cuda"), torch.randn(e, device="cuda")
        operands = [
            (_bf16(rows, d), _bf16(e, d) * d**-0.5) for _ in range(rotations(needed, most=most))
        ]
        return lambda tile: [
            partial(
                router.route, x, gate, bias, None, None,
                count=shape.CHOSEN, scale=1.5, tile=tile, workspace=workspace,
            )
            for x, gate in operands
        ]  # fmt: skip

    tiles = [
        router.Tile(columns, splits, step, warps, stages, parts, early)
        for columns, splits, step, warps, stages, parts, early in itertools.product(
            (16, 32), (4, 8, 16, 32), (32, 64, 128, 256), (2, 4, 8), (2, 3), (1, 2, 4, 8),
            (False, True),
        )
        if parts in (1, warps) and parts * step * splits <= d
    ]  # fmt: skip
    likely = [
        router.TILE,
        router.Tile(columns=16, splits=8, step=64, warps=8, stages=2, parts=8, early=True),
        router.Tile(columns=16, splits=8, step=128, warps=4, stages=2, parts=4),
        router.Tile(columns=16, splits=16, step=32, warps=8, stages=2, parts=8),
        router.Tile(columns=16, splits=4, step=128, warps=8, stages=2, parts=8),
        router.Tile(columns=32, splits=8, step=64, warps=8, stages=2, parts=8),
    ]
    return Tunable("route", needed, likely, tiles, prepare)


def _head(rows: int) -> Tunable:
    v, d = VOCABULARY, shape.HIDDEN

    def prepare(most: int) -> Make:
        workspace = Workspace.on("cuda")
        head = torch.empty(v, d, device="cuda", dtype=torch.bfloat16).normal_(std=d**-0.5)
        # One head is many times any cache.
        xs = [_bf16(rows, d) for _ in range(min(most, 4))]
        return lambda tile: [
            partial(lm_head.scores, x, head, tile=tile, workspace=workspace) for x in xs
        ]

    tiles = [
        lm_head.Tile(columns, tiles, step, warps, stages, parts)
        for columns, tiles, step, warps, stages, parts in itertools.product(
            (16, 32, 64, 128), (1, 2, 4, 8, 16), (64, 128, 256, 512), (1, 2, 4, 8), (3, 4, 6),
            (1, 2, 4, 8),
        )
        if parts in (1, warps)
        and columns * tiles in (64, 128, 256, 512)
        and 8 << 10 <= columns * step * parts * 2 <= 64 << 10
        and columns * step * parts * 2 * stages <= 192 << 10
    ]  # fmt: skip
    likely = [
        lm_head.TILE,
        lm_head.Tile(columns=64, tiles=4, step=128, warps=4, stages=4),
        lm_head.Tile(columns=64, tiles=8, step=128, warps=4, stages=6),
        lm_head.Tile(columns=64, tiles=8, step=256, warps=8, stages=3),
        lm_head.Tile(columns=32, tiles=8, step=256, warps=2, stages=3),
        lm_head.Tile(columns=32, tiles=8, step=128, warps=2, stages=4),
        lm_head.Tile(columns=16, tiles=16, step=128, warps=4, stages=3, parts=4),
        lm_head.Tile(columns=128, tiles=2, step=64, warps=4, stages=4),
        lm_head.Tile(columns=64, tiles=1, step=128, warps=4, stages=4),
    ]
    return Tunable("lm_head", v * d * 2, likely, tiles, prepare)


def _markov() -> Tunable:
    v, rank, d = VOCABULARY, RANK, shape.HIDDEN
    needed = v * rank * 2

    def prepare(most: int) -> Make:
        workspace = Workspace.on("cuda")
        base, hidden, trust = torch.randn(v, device="cuda"), _bf16(d), _bf16(1, d + rank)
        pairs = [(_bf16(v, rank), _bf16(v, rank)) for _ in range(rotations(needed, most=most))]
        previous = torch.tensor([7], device="cuda")
        return lambda tile: [
            partial(
                markov.step, base, previous, hidden, *pair, trust, tile=tile, workspace=workspace
            )
            for pair in pairs
        ]

    tiles = [
        markov.Tile(*tile)
        for tile in itertools.product(
            (16, 32, 64, 128), (1, 2, 4, 8, 16), (1, 2, 4, 8), (1, 3, 4, 6), (0, 2, 4),
            (False, True),
        )
        if (tile[1] > 1 and 64 <= tile[0] * tile[1] <= 512) or tile[1] == tile[3] == 1
    ]  # fmt: skip
    likely = [
        markov.TILE,
        markov.Tile(tokens=32, turns=8, warps=4, stages=4, fetch=0),
        markov.Tile(tokens=32, turns=8, warps=4, stages=4, fetch=4, early=True),
        markov.Tile(tokens=64, turns=8, warps=4, stages=3),
        markov.Tile(tokens=16, turns=16, warps=2, stages=6),
        markov.Tile(tokens=128, turns=1, warps=4, stages=1, fetch=0),
    ]
    return Tunable("markov", needed, likely, tiles, prepare)


def _pick(rows: int) -> Tunable:
    def prepare(most: int) -> Make:
        workspace = Workspace.on("cuda")
        scores = torch.randn(rows, VOCABULARY, device="cuda")
        key = [torch.tensor([given], device="cuda") for given in (1000, 3, 0.8)]
        return lambda tile: (
            [partial(sample.pick, scores, *key, tile=tile, workspace=workspace)] * min(most, 32)
        )

    tiles = [sample.Tile(*tile) for tile in itertools.product((256, 512, 1024, 2048), (1, 2, 4, 8))]
    return Tunable("pick", 0.0, [sample.TILE], tiles, prepare)
