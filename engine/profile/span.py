"""Stretches of time with a name: what a collector hands over. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Path = tuple[str, ...]  # names from the outermost phase to the innermost


@dataclass(frozen=True, slots=True)
class Span:
    """One call of a phase, or one launch of it, on the clock of its device."""

    path: Path
    start_ns: float
    end_ns: float


@dataclass(frozen=True, slots=True)
class Steps:
    """The spans of `len(step_ns)` equal steps, and what each step took as a whole.

    `step_ns` comes from another clock reading than the spans: the spans are held against it.
    """

    spans: tuple[Span, ...]
    step_ns: tuple[float, ...]


def union_ns(spans: Iterable[Span]) -> float:
    """Time in which at least one of `spans` ran."""
    total, reached = 0.0, float("-inf")
    for span in sorted(spans, key=lambda s: s.start_ns):
        if span.end_ns > reached:
            total += span.end_ns - max(span.start_ns, reached)
            reached = span.end_ns
    return total


def below(spans: Sequence[Span], path: Path) -> list[Span]:
    """Spans of the phase `path` and of every phase inside it."""
    depth = len(path)
    return [span for span in spans if span.path[:depth] == path]
