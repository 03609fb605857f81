"""Kernels with a choice of tiles: what to try, in which order, and on what operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from kernels.bench.clock import MOST

Calls = list[Callable[[], object]]
Make = Callable[[Any], Calls]


@dataclass(frozen=True, slots=True)
class Tunable:
    """A kernel at one shape; naming it costs nothing, operands are made by `prepare`."""

    name: str
    needed: float  # bytes that one call must read
    likely: Sequence[Any]  # tiles that should be good, the one in use first
    tiles: Sequence[Any]  # all that may be tried
    prepare: Callable[[int], Make]  # calls for a tile, over at most so many different operands

    def calls(self) -> Calls:
        """Calls with the tile in use, over operands that no cache can hold."""
        return self.prepare(MOST)(self.likely[0])

    def nearest(self, most: int) -> list[Any]:
        """The likely tiles, then the others by how little they differ from one; `most` in all."""
        others = [tile for tile in self.tiles if tile not in self.likely]
        others.sort(key=lambda tile: min(distance(tile, other) for other in self.likely))
        return [*self.likely, *others][:most]


def distance(tile: Any, other: Any) -> float:
    """Doublings and halvings between two tiles of one kind; a choice counts as one."""
    names = [one.name for one in fields(tile)]
    return sum(_apart(getattr(tile, name), getattr(other, name)) for name in names)


def _apart(a: Any, b: Any) -> float:
    if isinstance(a, bool) or a == b or 0 in (a, b):
        return float(a != b)
    return abs(math.log2(a / b))
