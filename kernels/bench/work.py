"""The calls that are timed, on random operands of the real shapes, made on the device."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernels import fp8_linear, hyper, moe, norm, rotary, rounding, router
from kernels.bench import ending, shape
from kernels.bench.clock import rotations
from kernels.workspace import Workspace

_ROUTINGS = 32
_BANKS = 2  # one bank of 160 experts is 2.1 GB: far more than any cache


@dataclass(frozen=True, slots=True)
class Work:
    """Calls over different operands; `weight_bytes` is what one of them must read on average."""

    name: str
    rows: int
    weight_bytes: float
    calls: list[Callable[[], object]]


def every(rows: int) -> Iterator[Work]:
    """All that is timed for a step of `rows` rows, one at a time: each frees its memory."""
    for linear in shape.LINEARS:
        yield _linear(linear, rows)
    yield from _experts(rows)
    yield _hyper(rows)
    yield from _rows(rows)
    for name, needed, calls in ending.every(rows):
        yield Work(name, rows, needed, calls)


def tunable(
    rows: int,
) -> Iterator[tuple[str, Callable[[Any], list[Callable[[], object]]], list[Any]]]:
    """Name, calls for a tile, and the tiles to try, of every product with a choice of tiles."""
    for linear in shape.LINEARS:
        tiles = [
            fp8_linear.Tile(8, columns, splits, warps, stages, parts, early)
            for columns, splits, warps, stages, parts, early in itertools.product(
                (16, 32, 64),
                (1, 2, 4, 8),
                (1, 2, 4, 8),
                (3, 4, 6, 9),
                (1, 2, 4, 8),
                (False, True),
            )
            if columns <= linear.n // linear.groups
            and splits * parts <= linear.k // 128
            and parts in (1, warps)
        ]
        workspace = Workspace.on("cuda")
        operands = [_linear_operands(linear, rows) for _ in range(rotations(linear.weight_bytes))]

        def multiply(
            tile: fp8_linear.Tile,
            operands: Any = operands,
            groups: int = linear.groups,
            workspace: Workspace = workspace,
        ) -> list[Callable[[], object]]:
            given: dict[str, Any] = {"groups": groups, "tile": tile, "workspace": workspace}
            return [partial(fp8_linear.multiply, *tensors, **given) for tensors in operands]

        yield linear.name, multiply, tiles
    tiles_moe = [
        moe.Tile(columns, step, warps, stages)
        for columns, step, warps, stages in itertools.product(
            (16, 32, 64, 128), (64, 128, 256), (1, 2, 4, 8), (2, 3, 4, 6)
        )
    ]
    draws = list(_draws(rows))

    def gate_up(tile: moe.Tile) -> list[Callable[[], object]]:
        return [partial(draw.gate_up, tile) for draw in draws]

    def down(tile: moe.Tile) -> list[Callable[[], object]]:
        return [partial(draw.down, tile) for draw in draws]

    yield "experts gate_up", gate_up, tiles_moe
    yield "experts down", down, tiles_moe
    yield from ending.tunable(rows)


def _bf16(*size: int) -> Tensor:
    return torch.randn(size, device="cuda", dtype=torch.bfloat16)


def _codes(*size: int) -> Tensor:
    """Random bytes."""
    return torch.randint(256, size, device="cuda", dtype=torch.uint8)


def _e4m3(*size: int) -> Tensor:
    """Every E4M3 code but the two of NaN."""
    codes = _codes(*size)
    codes[(codes & 127) == 127] = 0
    return codes.view(torch.float8_e4m3fn)


def _e8m0(*size: int) -> Tensor:
    """Scales from 2 ** -9 to 2 ** -6."""
    return torch.randint(118, 122, size, device="cuda", dtype=torch.uint8).view(
        torch.float8_e8m0fnu
    )


def _linear_operands(linear: shape.Linear, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    n, k, groups = linear.n, linear.k, linear.groups
    return _bf16(rows, groups * k), _e4m3(n, k), _e8m0(-(-n // 128), -(-k // 128))


def _linear(linear: shape.Linear, rows: int) -> Work:
    workspace = Workspace.on("cuda")

    def one() -> Callable[[], object]:
        operands, groups = _linear_operands(linear, rows), linear.groups
        return partial(fp8_linear.multiply, *operands, groups=groups, workspace=workspace)

    calls = [one() for _ in range(rotations(linear.weight_bytes))]
    return Work(linear.name, rows, linear.weight_bytes, calls)


@dataclass(frozen=True, slots=True)
class _Draw:
    """One step's rows and routing over one of the banks."""

    x: Tensor
    hidden: Tensor
    shared: Tensor
    chosen: Tensor
    weights: Tensor
    w13: Tensor
    s13: Tensor
    w2: Tensor
    s2: Tensor

    def gate_up(self, tile: moe.Tile = moe.GATE_UP) -> Tensor:
        return moe.gate_up(
            self.x, self.chosen, self.weights, self.w13, self.s13, limit=10.0, tile=tile
        )

    def down(self, tile: moe.Tile = moe.DOWN) -> Tensor:
        return moe.down(self.hidden, self.chosen, self.w2, self.s2, tile=tile)

    def chain(self) -> Tensor:
        parts = moe.down(self.gate_up(), self.chosen, self.w2, self.s2)
        return moe.total(parts, self.shared, torch.bfloat16)


def _draws(rows: int) -> Iterator[_Draw]:
    e, d, i = shape.EXPERTS, shape.HIDDEN, shape.INNER
    banks = [
        (_codes(e, 2 * i, d // 2), _e8m0(e, 2 * i, d // 32), _codes(e, d, i // 2),
         _e8m0(e, d, i // 32)) for _ in range(_BANKS)
    ]  # fmt: skip
    for routing in range(_ROUTINGS):
        chosen = torch.rand(rows, e, device="cuda").argsort(-1)[:, : shape.CHOSEN].contiguous()
        weights = torch.rand(rows, shape.CHOSEN, device="cuda")
        yield _Draw(
            _bf16(rows, d), _bf16(rows, shape.CHOSEN, i), _bf16(rows, d), chosen, weights,
            *banks[routing % _BANKS],
        )  # fmt: skip


def _experts(rows: int) -> Iterator[Work]:
    draws = list(_draws(rows))
    visited = sum(draw.chosen.unique().numel() for draw in draws) / len(draws)
    for name, calls, size in (
        ("experts gate_up", [draw.gate_up for draw in draws], shape.GATE_UP_BYTES),
        ("experts down", [draw.down for draw in draws], shape.DOWN_BYTES),
        ("experts chain", [draw.chain for draw in draws], shape.EXPERT_BYTES),
    ):
        yield Work(name, rows, visited * size, list(calls))


def _hyper(rows: int) -> Work:
    m, d = shape.STREAMS, shape.HIDDEN
    lines = (2 + m) * m

    def one() -> Callable[[], object]:
        streams, output, weight = _bf16(rows, m, d), _bf16(rows, d), _bf16(d)
        post, comb = torch.rand(rows, m, device="cuda"), torch.rand(rows, m, m, device="cuda") / m
        fn = torch.randn(lines, m * d, device="cuda") * (m * d) ** -0.5
        base, scale = torch.randn(lines, device="cuda"), torch.ones(3, device="cuda")
        return lambda: hyper.advance(
            streams, output, post, comb, fn, base, scale, weight,
            iterations=20, norm_eps=1e-6, eps=1e-6,
        )  # fmt: skip

    needed = shape.hyper_bytes(rows)
    return Work("hyper advance", rows, needed, [one() for _ in range(rotations(needed))])


def _rows(rows: int) -> Iterator[Work]:
    """The small ones, whose bytes are nothing and whose launches are all."""
    heads, head, pairs = shape.HEADS, shape.HEAD, shape.ROTARY // 2
    x, weight, queries, row = (
        _bf16(rows, 1024),
        _bf16(1024),
        _bf16(rows, heads, head),
        _bf16(rows, head),
    )
    index = _bf16(rows, heads, 128)
    cos, sin = torch.randn(2, rows, 1, pairs, device="cuda")
    logits, bias = (
        torch.randn(rows, shape.EXPERTS, device="cuda"),
        torch.randn(shape.EXPERTS, device="cuda"),
    )
    small: dict[str, Callable[[], object]] = {
        "norm 1024": lambda: norm.rms_norm(x, weight, 1e-6),
        "head norm + rotary": lambda: rotary.rotate_normalised(queries, cos, sin, 1e-6),
        "cache rounding": lambda: rounding.cache_round(row, shape.ROTARY),
        "index rounding": lambda: rounding.hadamard_fp4(index),
        "router": lambda: router.choose(logits, bias, shape.CHOSEN, scale=1.5),
    }
    for name, call in small.items():
        yield Work(name, rows, 0.0, [call] * 32)
