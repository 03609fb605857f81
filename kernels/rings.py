"""The rings of one arena, as the launches that save and restore their slots read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_FIELDS = 5
WORD = 4  # bytes; slots of rings are made of whole words


@dataclass(frozen=True, slots=True)
class Rings:
    """Where the rings of an arena lie."""

    table: Tensor  # int64 [rings, 5]: first word, words a slot, slots, ratio, first saved word
    words: int  # of all slots that one row may overwrite
    largest: int  # words of the largest slot

    @classmethod
    def of(cls, arena: Tensor, rings: Sequence[tuple[Tensor, int]]) -> Rings:
        """Rings [slots, ...] with their ratios: contiguous views of the `arena` of bytes.

        Raises ValueError for one that does not lie in the arena in whole words.
        """
        lines, words, largest = [], 0, 0
        for ring, ratio in rings:
            first = ring.data_ptr() - arena.data_ptr()
            size = ring[0].numel() * ring.element_size()
            _require(ring.is_contiguous(), "a ring is not contiguous")
            _require(first % WORD == 0 and size % WORD == 0, "a ring is not made of whole words")
            _require(0 <= first <= arena.nbytes - ring.nbytes, "a ring is not in the arena")
            lines.append((first // WORD, size // WORD, ring.shape[0], ratio, words))
            words += size // WORD
            largest = max(largest, size // WORD)
        table = torch.tensor(lines, dtype=torch.int64).reshape(-1, _FIELDS)
        return cls(table.to(arena.device), words, largest)


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ValueError(sentence)
