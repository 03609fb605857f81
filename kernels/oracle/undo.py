"""Slots of many rings saved before a step and put back where the step's rows are not kept."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.rings import Rings


def save(arena: Tensor, rings: Rings, position: Tensor, saved: Tensor) -> None:
    """Keep what rows at `position` [1] and on will overwrite in `saved` int32 [m, words]."""
    for row, slot, place in _moves(arena, rings, position, saved):
        del row
        place.copy_(slot)


def restore(arena: Tensor, rings: Rings, position: Tensor, kept: Tensor, saved: Tensor) -> None:
    """Put back the slots of all but the first `kept` [1] rows of the step at `position`."""
    for row, slot, place in _moves(arena, rings, position, saved):
        if row >= int(kept):
            slot.copy_(place)


def _moves(
    arena: Tensor, rings: Rings, position: Tensor, saved: Tensor
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Row, words of its slot and their place in `saved`, of every ring that the row writes."""
    memory = arena.view(torch.int32)
    for first, words, slots, ratio, place in rings.table.tolist():
        for row in range(saved.shape[0]):
            at = int(position) + row
            if (at + 1) % ratio == 0:
                slot = memory.narrow(0, first + at // ratio % slots * words, words)
                yield row, slot, saved[row].narrow(0, place, words)
