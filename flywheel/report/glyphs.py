"""Plots that a terminal can print: one band in a row of cells, and a line of sparks. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

SPARKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Pens:
    """The characters of a band; those of ASCII for output that knows no other."""

    zero: str = "┊"
    band: str = "─"
    low: str = "├"
    high: str = "┤"
    mean: str = "●"
    left: str = "◂"
    right: str = "▸"


UNICODE = Pens()
ASCII = Pens(":", "-", "|", "|", "o", "<", ">")


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale of gains that holds zero; `low` < `high`, both fractions."""

    low: float
    high: float

    def share(self, value: float) -> float:
        """Where a value lies: 0 at the low end, 1 at the high one, never outside."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))


def axis(bands: Sequence[tuple[float, float | None, float | None]]) -> Axis:
    """A scale for (mean, low, high) bands, around zero.

    An end that is far off or unbounded would squash the rest, so the scale follows the means and
    the ends near them; a loss far larger than any gain leaves it.
    """
    means = [mean for mean, _, _ in bands] or [0.0]
    ends = [e for _, low, high in bands for e in (low, high) if e is not None]
    high = max(0.01, *means, *(e for e in ends if e <= 3 * max(0.01, *means)))
    low = max(min(-0.01, *means, *ends), -1.25 * max(high, 0.05))
    margin = 0.04 * (high - low)
    return Axis(low - margin, high + margin)


def bar(
    mean: float, low: float | None, high: float | None, scale: Axis, width: int, pens: Pens
) -> str:
    """A band in `width` cells; an arrow where it leaves the scale or nothing bounds it."""
    def cell(value: float) -> int:
        return min(width - 1, int(scale.share(value) * width))

    cells = [" "] * width
    if low is not None and high is not None and (high < scale.low or low > scale.high):
        cells[0 if high < scale.low else -1] = pens.left if high < scale.low else pens.right
        cells[cell(0.0)] = pens.zero
        return "".join(cells).rstrip()
    first = 0 if low is None else cell(low)
    last = width - 1 if high is None else cell(high)
    for i in range(first, last + 1):
        cells[i] = pens.band
    cells[first] = pens.left if low is None or low < scale.low else pens.low
    cells[last] = pens.right if high is None or high > scale.high else pens.high
    if cells[cell(0.0)] in (" ", pens.band):
        cells[cell(0.0)] = pens.zero
    if scale.low <= mean <= scale.high:
        cells[cell(mean)] = pens.mean
    return "".join(cells).rstrip()


def spark(values: Sequence[float], width: int) -> str:
    """Values as a line of at most `width` sparks, low to high; empty without two values."""
    shown = _binned([v for v in values if math.isfinite(v)], width)
    if len(shown) < 2:
        return ""
    low, high = min(shown), max(shown)
    if high <= low:
        return SPARKS[3] * len(shown)
    top = len(SPARKS) - 1
    return "".join(SPARKS[round((v - low) / (high - low) * top)] for v in shown)


def _binned(values: Sequence[float], width: int) -> list[float]:
    if len(values) <= width:
        return list(values)
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    return [math.fsum(values[a:b]) / (b - a) for a, b in pairwise(edges) if b > a]
