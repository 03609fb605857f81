"""The calls over a sequence's state that are timed: attention and the indexer, by context."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from kernels import attention, indexer
from kernels.bench import shape
from kernels.bench.clock import rotations
from kernels.bench.tunable import Make, Tunable
from kernels.workspace import Workspace

WINDOW, INDEX_HEAD, COUNT = 128, 128, 512
BLOCK = 5  # slots of a draft
_KINDS = {"window": (0, 0), "csa": (4, COUNT), "hca": (128, 0)}  # ratio, rows that are listed
_CONTEXTS = (8 << 10, 128 << 10)


def every(rows: int) -> Iterator[Tunable]:
    """Attention and the index of a step of `rows` rows, and the draft's."""
    for kind, context in itertools.product(_KINDS, _CONTEXTS):
        if kind != "window" or context == _CONTEXTS[0]:
            yield _attend(kind, rows, context)
    yield _draft()
    for context in _CONTEXTS:
        yield _choose(rows, context)


def _sums() -> list[attention.Tile]:
    return [
        attention.Tile(heads, keys, splits, warps, channels, early)
        for early, splits, (heads, keys, warps), channels in itertools.product(
            (True, False),
            (40, 20),
            ((16, 32, 4), (16, 32, 8), (16, 16, 4), (32, 32, 8), (16, 64, 8)),
            (128, 512, 64),
        )
    ]


def _searches() -> list[indexer.Step]:
    return [
        indexer.Step(keys, programs, size, warps, early)
        for early, (size, warps), (keys, programs) in itertools.product(
            (True, False),
            ((8192, 16), (8192, 8), (4096, 8), (4096, 16), (2048, 8), (2048, 4)),
            ((32, 264), (64, 132), (64, 264), (16, 264), (128, 132)),
        )
    ]


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


def _attend(kind: str, rows: int, context: int) -> Tunable:
    """A step at the end of `context`; the window and compressed rows, each read once a row."""
    ratio, count = _KINDS[kind]
    capacity = context // ratio if ratio else 0
    seen = WINDOW + rows * min(capacity, count or capacity)
    needed = seen * shape.HEAD * 2.0

    def prepare(most: int) -> Make:
        cos, sin = _table(context)
        sink, at = torch.randn(shape.HEADS, device="cuda"), _position(context - rows)

        def one() -> Callable[..., object]:
            return partial(
                attention.attend, _bf16(rows, shape.HEADS, shape.HEAD),
                _bf16(WINDOW + 8, shape.HEAD), _bf16(capacity, shape.HEAD) if ratio else None,
                _listed(rows, capacity - rows) if count else None,
                sink, cos, sin, at, window=WINDOW, ratio=ratio, scale=shape.HEAD**-0.5,
            )  # fmt: skip

        held = max(needed, capacity * shape.HEAD * 2)
        return _with_tile([one() for _ in range(rotations(held, least=8, most=most))])

    name = f"attention {kind} {context >> 10}k"
    return Tunable(name, needed, [attention.STEP], _sums(), prepare)


def _draft() -> Tunable:
    needed = (WINDOW + BLOCK) * shape.HEAD * 2.0

    def prepare(most: int) -> Make:
        cos, sin = _table(1024)
        sink, at = torch.randn(shape.HEADS, device="cuda"), _position(1000)

        def one() -> Callable[..., object]:
            return partial(
                attention.attend_block, _bf16(BLOCK, shape.HEADS, shape.HEAD),
                _bf16(WINDOW, shape.HEAD), _bf16(BLOCK, shape.HEAD), sink, cos, sin, at,
                scale=shape.HEAD**-0.5,
            )  # fmt: skip

        return _with_tile([one() for _ in range(rotations(needed, most=most))])

    return Tunable("attention draft", needed, [attention.STEP], _sums(), prepare)


def _choose(rows: int, context: int) -> Tunable:
    capacity = context // 4
    needed = capacity * INDEX_HEAD * 2.0

    def prepare(most: int) -> Make:
        at, workspace = _position(context - rows), Workspace.on("cuda")

        def one() -> Callable[..., object]:
            return partial(
                indexer.choose, _bf16(rows, shape.HEADS, INDEX_HEAD), _bf16(capacity, INDEX_HEAD),
                torch.randn(rows, shape.HEADS, device="cuda"), at, ratio=4, count=COUNT,
                workspace=workspace,
            )  # fmt: skip

        return _with_tile([one() for _ in range(rotations(needed, most=most))])

    tile = indexer.default_step(capacity, COUNT, torch.bfloat16)
    return Tunable(f"index {context >> 10}k", needed, [tile], _searches(), prepare)


def _with_tile(calls: list[Callable[..., object]]) -> Make:
    return lambda tile: [partial(call, tile=tile) for call in calls]
