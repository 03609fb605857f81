"""The calls over a sequence's state that are timed: attention and the indexer, by context."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernels import attention, indexer
from kernels.bench import shape
from kernels.bench.clock import rotations

Calls = list[Callable[[], object]]

WINDOW, INDEX_HEAD, COUNT = 128, 128, 512
BLOCK = 5  # slots of a draft
_KINDS = {"window": (0, 0), "csa": (4, COUNT), "hca": (128, 0)}  # ratio, rows that are listed
_CONTEXTS = (8 << 10, 128 << 10)


def every(rows: int) -> Iterator[tuple[str, float, Calls]]:
    """Name, bytes that one call must read, and calls, of a step of `rows` rows."""
    for name, needed, make in _all(rows):
        yield name, needed, make(None)


def tunable(rows: int) -> Iterator[tuple[str, Callable[[Any], Calls], list[Any]]]:
    """Name, calls for a tile, and the tiles to try."""
    sums = [
        attention.Tile(heads, keys, splits, warps)
        for heads, keys, splits, warps in itertools.product(
            (16, 32, 64), (16, 32, 64, 128), (8, 16, 32, 64), (4, 8)
        )
    ]
    searches = [
        indexer.Tile(keys, together, warps, size, search)
        for keys, together, warps, size, search in itertools.product(
            (64, 128, 256), (1, 2, 8), (4, 8), (2048, 4096, 8192, 16384, 32768), (8, 16, 32)
        )
    ]
    for name, _, make in _all(rows):
        yield name, make, searches if name.startswith("index") else sums


def _all(rows: int) -> Iterator[tuple[str, float, Callable[[Any], Calls]]]:
    for kind, context in itertools.product(_KINDS, _CONTEXTS):
        if kind != "window" or context == _CONTEXTS[0]:
            yield _attend(kind, rows, context)
    yield _draft()
    for context in _CONTEXTS:
        yield _choose(rows, context)


def _bf16(*size: int) -> Tensor:
    return torch.randn(size, device="cuda", dtype=torch.bfloat16)


def _position(at: int) -> Tensor:
    return torch.tensor([at], device="cuda")


def _table(positions: int) -> tuple[Tensor, Tensor]:
    cos, sin = torch.randn(2, positions, shape.ROTARY // 2, device="cuda")
    return cos, sin


def _listed(rows: int, visible: int) -> Tensor:
    chosen = torch.rand(rows, visible, device="cuda").argsort(-1)[:, :COUNT]
    return chosen.sort(-1).values.to(torch.int32).contiguous()


def _attend(kind: str, rows: int, context: int) -> tuple[str, float, Callable[[Any], Calls]]:
    """A step at the end of `context`; the window and compressed rows, each read once a row."""
    ratio, count = _KINDS[kind]
    capacity = context // ratio if ratio else 0
    seen = WINDOW + rows * min(capacity, count or capacity)
    needed = seen * shape.HEAD * 2.0
    cos, sin = _table(context)
    sink, at = torch.randn(shape.HEADS, device="cuda"), _position(context - rows)

    def one() -> Callable[..., object]:
        return partial(
            attention.attend, _bf16(rows, shape.HEADS, shape.HEAD), _bf16(WINDOW + 8, shape.HEAD),
            _bf16(capacity, shape.HEAD) if ratio else None,
            _listed(rows, capacity - rows) if count else None,
            sink, cos, sin, at, window=WINDOW, ratio=ratio, scale=shape.HEAD**-0.5,
        )  # fmt: skip

    calls = [one() for _ in range(rotations(max(needed, capacity * shape.HEAD * 2), least=8))]
    name = f"attention {kind} {context >> 10}k"
    return name, needed, lambda tile: [partial(call, tile=tile) for call in calls]


def _draft() -> tuple[str, float, Callable[[Any], Calls]]:
    needed = (WINDOW + BLOCK) * shape.HEAD * 2.0
    cos, sin = _table(1024)
    sink, at = torch.randn(shape.HEADS, device="cuda"), _position(1000)

    def one() -> Callable[..., object]:
        return partial(
            attention.attend_block, _bf16(BLOCK, shape.HEADS, shape.HEAD),
            _bf16(WINDOW, shape.HEAD), _bf16(BLOCK, shape.HEAD), sink, cos, sin, at,
            scale=shape.HEAD**-0.5,
        )  # fmt: skip

    calls = [one() for _ in range(rotations(needed))]
    return "attention draft", needed, lambda tile: [partial(call, tile=tile) for call in calls]


def _choose(rows: int, context: int) -> tuple[str, float, Callable[[Any], Calls]]:
    capacity = context // 4
    needed = capacity * INDEX_HEAD * 2.0
    at = _position(context - rows)

    def one() -> Callable[..., object]:
        return partial(
            indexer.choose, _bf16(rows, shape.HEADS, INDEX_HEAD), _bf16(capacity, INDEX_HEAD),
            torch.randn(rows, shape.HEADS, device="cuda"), at, ratio=4, count=COUNT,
        )  # fmt: skip

    calls = [one() for _ in range(rotations(needed))]
    name = f"index {context >> 10}k"
    return name, needed, lambda tile: [partial(call, tile=tile) for call in calls]
