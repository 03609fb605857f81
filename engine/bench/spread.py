"""What repeated timings say. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Times = Mapping[str, Sequence[float]]  # prompt -> ms/token of every repeat


@dataclass(frozen=True, slots=True)
class Spread:
    """Milliseconds per token over prompts and repeats."""

    minimum: float
    median: float
    maximum: float
    repeat_spread: float  # median over prompts of (slowest repeat / fastest - 1)
    samples: int

    @classmethod
    def of(cls, times: Times) -> Spread:
        """Summary of one contestant; `times` must not be empty."""
        every = [value for repeats in times.values() for value in repeats]
        spreads = [max(repeats) / min(repeats) - 1 for repeats in times.values()]
        return cls(
            min(every), statistics.median(every), max(every), statistics.median(spreads), len(every)
        )


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times faster one contestant is, prompt by prompt."""

    mean: float  # geometric mean over prompts of the ratio of medians
    lowest: float
    highest: float
    prompts: int

    @classmethod
    def of(cls, slower: Times, faster: Times) -> Ratio:
        """Pairs prompts, so that hard and easy ones do not blur the comparison."""
        ratios = [
            statistics.median(slower[prompt]) / statistics.median(faster[prompt])
            for prompt in faster
        ]
        mean = math.exp(statistics.fmean(math.log(r) for r in ratios))
        return cls(mean, min(ratios), max(ratios), len(ratios))


def order(names: Sequence[str], repeats: int, turn: int) -> list[str]:
    """Who runs when for one prompt: forwards, backwards, forwards ... so that drift cancels.

    `turn` rotates who begins, so that nobody always runs first.
    """
    first = [*names[turn % len(names) :], *names[: turn % len(names)]]
    return [name for r in range(repeats) for name in (first if r % 2 == 0 else first[::-1])]


def common_beginning(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two texts share before they part."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))
