"""Slots of many rings saved before a step and put back where the step's rows are not kept.

A sequence remembers hundreds of rings, all parts of one arena. Row r of a step, at position p,
writes slot (p // ratio) % slots of a ring of its own ratio, if its window ends there: what it finds
is saved by one launch and put back by another, whatever the number of rings.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import DECODE_ROWS, require, require_contiguous
from kernels.rings import Rings

_BLOCK = 512


def save(arena: Tensor, rings: Rings, position: Tensor, saved: Tensor) -> None:
    """Keep what rows at `position` [1] (int64) and on will overwrite in `saved` int32 [m, words].

    Raises ValueError for operands that do not fit.
    """
    _launch(arena, rings, position, position, saved, back=False)


def restore(arena: Tensor, rings: Rings, position: Tensor, kept: Tensor, saved: Tensor) -> None:
    """Put back the slots of all but the first `kept` [1] (int64) rows of the step at `position`.

    `saved` is what `save` left of the same step.
    """
    _launch(arena, rings, position, kept, saved, back=True)


def _launch(
    arena: Tensor, rings: Rings, position: Tensor, kept: Tensor, saved: Tensor, *, back: bool
) -> None:
    m = saved.shape[0]
    require(arena.dtype == torch.uint8 and arena.dim() == 1, "an arena is one run of bytes")
    require(saved.dtype == torch.int32 and saved.shape == (m, rings.words), "saved does not fit")
    require(m <= DECODE_ROWS, f"{m} rows are more than {DECODE_ROWS}")
    require(
        position.dtype == kept.dtype == torch.int64 and position.numel() == kept.numel() == 1,
        "position and kept are not one int64 each",
    )
    require_contiguous(arena=arena, table=rings.table, saved=saved)
    count = rings.table.shape[0]
    if m and count:
        _move[(count, m)](
            arena.view(torch.int32), rings.table, position, kept, saved, rings.words,
            BACK=back, BLOCK=_BLOCK, TURNS=triton.cdiv(rings.largest, _BLOCK), num_warps=4,
        )  # fmt: skip


@triton.jit
def _move(  # type: ignore[no-untyped-def]
    arena, table, position, kept, saved, words,
    BACK: tl.constexpr, BLOCK: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    line = table + tl.program_id(0) * 5
    row = tl.program_id(1)
    ratio = tl.load(line + 3)
    at = tl.load(position) + row
    if (at + 1) % ratio != 0:
        return
    if BACK:  # noqa: SIM102 - a compile-time decision before one of the device
        if row < tl.load(kept):
            return
    size = tl.load(line + 1)
    slot = arena + tl.load(line) + (at // ratio) % tl.load(line + 2) * size
    place = saved + row.to(tl.int64) * words + tl.load(line + 4)
    for turn in range(TURNS):
        lane = turn * BLOCK + tl.arange(0, BLOCK)
        if BACK:
            tl.store(slot + lane, tl.load(place + lane, mask=lane < size), mask=lane < size)
        else:
            tl.store(place + lane, tl.load(slot + lane, mask=lane < size), mask=lane < size)
