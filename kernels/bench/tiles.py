"""Tiles of experts and hyper-connections in the order in which they are worth trying.

Programs of one warp wait for nobody but themselves. So first come others of one warp, then pairs
of warps that share the channels, then tiles whose warps share the rows of the step.
"""

from __future__ import annotations

from dataclasses import replace

from kernels import hyper, moe


def _experts(*launches: tuple[int, int, int, int, int, int], used: moe.Tile) -> list[moe.Tile]:
    """The tile in use, then others; the first six of all once more with an early start."""
    tiles = [used, *(tile for tile in (moe.Tile(*launch) for launch in launches) if tile != used)]
    early = [replace(tile, early=not tile.early) for tile in tiles[:6]]
    return [*tiles[:6], *early, *tiles[6:]]


# columns, step, shared, warps, stages, parts
GATE_UP = _experts(
    (16, 128, 1, 1, 6, 1), (16, 128, 1, 1, 5, 1), (16, 128, 1, 1, 4, 1), (16, 64, 1, 1, 10, 1),
    (16, 128, 1, 1, 8, 1), (16, 256, 1, 1, 4, 1), (16, 256, 1, 1, 3, 1), (16, 64, 1, 1, 8, 1),
    (16, 128, 1, 2, 4, 2), (16, 128, 1, 2, 3, 2), (16, 128, 1, 2, 6, 1), (16, 128, 1, 2, 4, 1),
    (32, 128, 2, 2, 6, 1), (32, 128, 2, 1, 4, 1), (32, 128, 2, 1, 6, 1), (32, 64, 2, 1, 8, 1),
    (32, 128, 1, 4, 4, 1), (32, 128, 2, 4, 4, 1), (32, 128, 2, 2, 4, 1), (16, 64, 1, 2, 6, 2),
    (16, 128, 1, 4, 3, 4), (32, 256, 1, 4, 3, 1), (64, 128, 2, 4, 4, 1), (32, 256, 2, 2, 4, 1),
    (16, 256, 1, 2, 3, 2), (32, 128, 1, 2, 4, 2), (64, 128, 2, 8, 4, 1),
    used=moe.GATE_UP,
)  # fmt: skip
DOWN = _experts(
    (32, 128, 1, 1, 6, 1), (32, 128, 1, 1, 5, 1), (32, 128, 1, 1, 4, 1), (32, 64, 1, 1, 10, 1),
    (16, 128, 1, 1, 6, 1), (32, 128, 2, 1, 6, 1), (32, 128, 1, 1, 8, 1), (32, 256, 1, 1, 4, 1),
    (32, 256, 2, 1, 4, 1), (32, 64, 1, 1, 8, 1), (16, 128, 1, 1, 4, 1), (16, 256, 1, 1, 4, 1),
    (32, 128, 1, 2, 4, 2), (32, 128, 1, 2, 3, 2), (32, 128, 1, 2, 6, 1), (32, 128, 1, 2, 4, 1),
    (64, 128, 2, 2, 6, 1), (64, 128, 2, 1, 4, 1), (16, 128, 1, 2, 4, 2), (64, 128, 1, 4, 4, 1),
    (64, 128, 2, 4, 4, 1), (64, 128, 2, 2, 4, 1), (32, 64, 1, 2, 6, 2), (32, 128, 1, 4, 3, 4),
    (64, 256, 2, 2, 4, 1), (32, 256, 1, 2, 3, 2), (128, 128, 2, 8, 4, 1),
    used=moe.DOWN,
)  # fmt: skip
# channels, warps, read_warps, early
_ADVANCE = (
    (64, 2, 8, True), (64, 4, 4, True), (64, 4, 8, True), (32, 2, 4, True), (32, 2, 8, True),
    (32, 1, 4, True), (32, 4, 8, True), (64, 2, 16, True), (128, 4, 8, True), (128, 8, 8, True),
    (32, 2, 16, True), (16, 1, 8, True), (64, 2, 2, True), (64, 8, 8, True), (64, 2, 4, False),
)  # fmt: skip
ADVANCE = [hyper.TILE, *(tile for tile in (hyper.Tile(*x) for x in _ADVANCE) if tile != hyper.TILE)]
