"""The calls that are timed, on random operands of the real shapes, made on the device."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernels import (
    fp8_linear,
    hyper,
    moe,
    moe_prefill,
    mxfp4,
    narrow,
    norm,
    rotary,
    rounding,
    router,
)
from kernels.bench import ending, rings, shape, state
from kernels.bench.clock import rotations
from kernels.workspace import Workspace

_ROUTINGS = 32
_MANY_ROWS = 4096  # of a prefill's chunk
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
    yield from _hyper(rows)
    yield from _rows(rows)
    for name, needed, calls in (*state.every(rows), *ending.every(rows)):
        yield Work(name, rows, needed, calls)
    for name, calls in rings.every(rows):
        yield Work(name, rows, 0.0, calls)


# Name, calls for a tile, and the tiles to try.
Tunable = tuple[str, Callable[[Any], list[Callable[[], object]]], list[Any]]


def tunable(rows: int) -> Iterator[Tunable]:
    """Everything with a choice of tiles, for a step of `rows` rows; sorted experts for many."""
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
    yield from _tunable_experts(rows)
    writes = [_hyper_operands(rows, shape.CHOSEN + 1) for _ in range(64)]

    def advance(tile: hyper.Tile) -> list[Callable[[], object]]:
        return [partial(_advance, given, tile) for given in writes]

    launches = itertools.product((16, 32, 64, 128), (1, 2, 4, 8), (4, 8, 16))
    yield "hyper advance", advance, [hyper.Tile(*launch) for launch in launches]
    yield from state.tunable(rows)
    yield from ending.tunable(rows)
    yield from rings.tunable(rows)


def _tunable_experts(rows: int) -> Iterator[Tunable]:
    tiles = [
        moe.Tile(columns, step, shared, warps, stages)
        for columns, step, shared, warps, stages in itertools.product(
            (16, 32, 64), (128, 256, 512), (1, 2, 4), (1, 2, 4), (3, 4, 6)
        )
        if columns // shared >= 16 and step * stages <= 1536
    ]
    draws = list(_draws(rows))
    yield (
        "experts gate_up",
        lambda tile: [partial(draw.gate_up, tile) for draw in draws],
        [tile for tile in tiles if tile.warps * 16 <= 2 * tile.columns],
    )
    yield (
        "experts down",
        lambda tile: [partial(draw.down, tile) for draw in draws],
        [tile for tile in tiles if tile.warps * 16 <= tile.columns],
    )
    many = list(itertools.islice(_draws(_MANY_ROWS), 2))
    sorted_tiles = [
        moe_prefill.Tile(*tile)
        for tile in itertools.product((64, 128), (32, 64, 128), (64, 128), (4, 8), (2, 3))
    ]
    yield (
        "sorted gate_up",
        lambda tile: [partial(draw.sorted_gate_up, tile) for draw in many],
        sorted_tiles,
    )
    yield (
        "sorted down",
        lambda tile: [partial(draw.sorted_down, tile) for draw in many],
        sorted_tiles,
    )


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
    return _bf16(rows, groups * k), *_fp8(n, k)


def _linear(linear: shape.Linear, rows: int) -> Work:
    workspace = Workspace.on("cuda")

    def one() -> Callable[[], object]:
        operands, groups = _linear_operands(linear, rows), linear.groups
        return partial(fp8_linear.multiply, *operands, groups=groups, workspace=workspace)

    calls = [one() for _ in range(rotations(linear.weight_bytes))]
    return Work(linear.name, rows, linear.weight_bytes, calls)


@dataclass(frozen=True, slots=True)
class _Experts:
    """A layer's experts, the shared one with them."""

    w13: mxfp4.Bank
    w2: mxfp4.Bank
    shared_w13: tuple[Tensor, Tensor]
    shared_w2: tuple[Tensor, Tensor]

    @classmethod
    def random(cls) -> _Experts:
        d, i = shape.HIDDEN, shape.INNER
        return cls(_bank(2 * i, d), _bank(d, i), _fp8(2 * i, d), _fp8(d, i))


@dataclass(frozen=True, slots=True)
class _Draw:
    """One step's rows and routing over one of the banks."""

    x: Tensor
    hidden: Tensor
    chosen: Tensor
    weights: Tensor
    experts: _Experts

    def gate_up(self, tile: moe.Tile = moe.GATE_UP) -> Tensor:
        return moe.gate_up(
            self.x, self.chosen, self.weights, self.experts.w13, *self.experts.shared_w13,
            limit=10.0, tile=tile,
        )  # fmt: skip

    def down(self, tile: moe.Tile = moe.DOWN) -> Tensor:
        return moe.down(
            self.hidden, self.chosen, self.experts.w2, *self.experts.shared_w2, tile=tile
        )

    def sorted_gate_up(self, tile: moe_prefill.Tile = moe_prefill.GATE_UP) -> Tensor:
        return moe_prefill.gate_up(
            self.x, self.chosen, self.weights, self.experts.w13, *self.experts.shared_w13,
            limit=10.0, tile=tile,
        )  # fmt: skip

    def sorted_down(self, tile: moe_prefill.Tile = moe_prefill.DOWN) -> Tensor:
        return moe_prefill.down(
            self.hidden, self.chosen, self.experts.w2, *self.experts.shared_w2, tile=tile
        )

    def chain(self) -> Tensor:
        return moe.down(self.gate_up(), self.chosen, self.experts.w2, *self.experts.shared_w2)


def _bank(outputs: int, channels: int) -> mxfp4.Bank:
    """Random codes, and scales from 2 ** -9 to 2 ** -6."""
    tiles = (shape.EXPERTS, outputs // mxfp4.ROWS, channels // mxfp4.CHANNELS)
    codes = torch.empty((*tiles, 4, 32, 4), device="cuda", dtype=torch.int32)
    codes.view(torch.uint8).random_()
    bias = narrow.E2M1_BIAS
    scales = torch.empty((*tiles, 8, 8), device="cuda", dtype=torch.int16)
    scales.view(torch.uint8).random_(118 + bias, 122 + bias)
    return mxfp4.Bank(codes, scales, outputs, channels)


def _fp8(outputs: int, channels: int) -> tuple[Tensor, Tensor]:
    return _e4m3(outputs, channels), _e8m0(-(-outputs // 128), -(-channels // 128))


def _draws(rows: int) -> Iterator[_Draw]:
    e, d, i, t = shape.EXPERTS, shape.HIDDEN, shape.INNER, shape.CHOSEN
    banks = [_Experts.random() for _ in range(_BANKS)]
    for routing in range(_ROUTINGS):
        chosen = torch.rand(rows, e, device="cuda").argsort(-1)[:, :t].contiguous()
        weights = torch.rand(rows, t, device="cuda")
        yield _Draw(_bf16(rows, d), _bf16(rows, t + 1, i), chosen, weights, banks[routing % _BANKS])


def _experts(rows: int) -> Iterator[Work]:
    draws = list(_draws(rows))
    visited = sum(draw.chosen.unique().numel() for draw in draws) / len(draws)
    for name, calls, size in (
        (
            "experts gate_up",
            [draw.gate_up for draw in draws],
            (shape.GATE_UP_BYTES, shape.SHARED_GATE_UP_BYTES),
        ),
        (
            "experts down",
            [draw.down for draw in draws],
            (shape.DOWN_BYTES, shape.SHARED_DOWN_BYTES),
        ),
        ("experts chain", [draw.chain for draw in draws], (shape.EXPERT_BYTES, shape.SHARED_BYTES)),
    ):
        yield Work(name, rows, visited * size[0] + size[1], list(calls))


def _hyper(rows: int) -> Iterator[Work]:
    """After an attention's output, and after the parts of the experts'."""
    for name, parts in (("hyper advance", 0), ("hyper advance, parts", shape.CHOSEN + 1)):
        needed = shape.hyper_bytes(rows, parts)
        operands = [_hyper_operands(rows, parts) for _ in range(rotations(needed))]
        yield Work(name, rows, needed, [partial(_advance, given) for given in operands])


def _hyper_operands(rows: int, parts: int) -> tuple[Tensor, ...]:
    """Streams, output, post, comb, fn, base, scale and norm."""
    m, d = shape.STREAMS, shape.HIDDEN
    lines = (2 + m) * m
    output = torch.randn(rows, parts, d, device="cuda") if parts else _bf16(rows, d)
    post, comb = torch.rand(rows, m, device="cuda"), torch.rand(rows, m, m, device="cuda") / m
    fn = torch.randn(lines, m * d, device="cuda") * (m * d) ** -0.5
    base, scale = torch.randn(lines, device="cuda"), torch.ones(3, device="cuda")
    return _bf16(rows, m, d), output, post, comb, fn, base, scale, _bf16(d)


def _advance(given: tuple[Tensor, ...], tile: hyper.Tile = hyper.TILE) -> object:
    return hyper.advance(*given, iterations=20, norm_eps=1e-6, eps=1e-6, tile=tile)


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
