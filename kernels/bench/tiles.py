"""Tiles of experts and hyper-connections in the order in which they are worth trying.

A warp of experts waits for its own arithmetic, so what counts is how many there are: first those
tiles that put 13 or more on each of an H200's processors when one row chooses six experts.
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
    (32, 128, 1, 4, 4, 1), (16, 128, 1, 2, 4, 2), (32, 128, 2, 4, 4, 1), (16, 128, 1, 2, 3, 2),
    (32, 256, 1, 4, 3, 1), (32, 256, 2, 4, 3, 1), (64, 128, 2, 8, 4, 1),
    (32, 128, 2, 2, 4, 1), (16, 128, 1, 4, 3, 4), (16, 128, 1, 1, 6, 1), (16, 256, 1, 2, 3, 2),
    (32, 128, 2, 4, 6, 1), (16, 64, 1, 2, 6, 2), (16, 256, 1, 2, 2, 2), (16, 128, 1, 4, 2, 4),
    (16, 128, 1, 2, 6, 2), (32, 256, 2, 2, 3, 1), (32, 128, 1, 2, 4, 2), (32, 128, 1, 4, 3, 4),
    (16, 256, 1, 1, 4, 1), (16, 256, 1, 4, 3, 4),
    (32, 128, 2, 2, 3, 2), (32, 128, 2, 2, 6, 1), (16, 128, 1, 8, 2, 8),
    (64, 128, 4, 4, 4, 1), (64, 128, 2, 4, 4, 1), (64, 256, 4, 4, 3, 1), (32, 256, 2, 2, 2, 1),
    used=moe.GATE_UP,
)  # fmt: skip
DOWN = _experts(
    (64, 128, 1, 4, 4, 1), (32, 128, 1, 2, 4, 2), (64, 128, 2, 4, 4, 1), (32, 128, 1, 2, 3, 2),
    (64, 256, 1, 4, 3, 1), (64, 256, 2, 4, 3, 1), (128, 128, 2, 8, 4, 1),
    (64, 128, 2, 2, 4, 1), (32, 128, 1, 4, 3, 4), (32, 128, 1, 1, 6, 1), (32, 256, 1, 2, 3, 2),
    (32, 256, 1, 2, 2, 2), (32, 128, 1, 4, 2, 4),
    (16, 128, 1, 2, 4, 2), (16, 256, 1, 2, 3, 2), (16, 128, 1, 4, 3, 4), (64, 128, 2, 2, 3, 2),
    (64, 256, 2, 2, 3, 1), (32, 128, 2, 2, 4, 2), (32, 256, 1, 4, 2, 4), (64, 128, 2, 4, 3, 4),
    (32, 256, 2, 1, 4, 1), (64, 128, 4, 4, 4, 1), (32, 64, 1, 2, 6, 2), (32, 128, 1, 8, 2, 8),
    (128, 128, 4, 4, 4, 1), (128, 128, 8, 4, 4, 1), (128, 256, 4, 4, 3, 1), (64, 256, 2, 2, 2, 1),
    used=moe.DOWN,
)  # fmt: skip
# channels, warps, read_warps, early
ADVANCE = [
    hyper.TILE,
    *(
        hyper.Tile(*launch)
        for launch in (
            (64, 4, 4, True), (64, 4, 8, False), (64, 4, 8, True), (32, 4, 8, True),
            (32, 2, 8, True), (128, 8, 8, True), (32, 4, 16, True), (64, 8, 8, True),
            (32, 2, 16, True), (128, 4, 8, True), (64, 4, 16, True), (16, 2, 8, True),
            (32, 4, 8, False), (128, 8, 8, False), (32, 2, 8, False), (64, 8, 16, False),
        )
    ),
]  # fmt: skip
