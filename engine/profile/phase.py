"""The tree of phases of a step, each held against its parent. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from engine.errors import EngineError
from engine.profile.span import Path, Span, Steps, below, union_ns

ROOT = "step"
# Two readings of one clock differ by its resolution; a phase of a microsecond shows that much.
SLACK = 0.01
SLACK_MS = 0.002


class ProfileError(EngineError):
    """A profile that contradicts itself, or a step that is not what its script says."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a mean step. `ms` is the time in which it ran, its children's included.

    `overlap_ms` is the time that children share with each other, where streams run side by side.
    """

    path: Path
    ms: float
    launches: float
    bytes: float  # that the phase must read, its children's included
    overlap_ms: float = 0.0
    children: tuple[Phase, ...] = ()

    @property
    def name(self) -> str:
        """The path as text."""
        return "/".join(self.path) or ROOT

    @property
    def own_ms(self) -> float:
        """Time in no child: gaps between launches, and work without a name."""
        inside = sum(child.ms for child in self.children) - self.overlap_ms
        return max(0.0, self.ms - inside) if self.children else self.ms

    def walk(self) -> Iterator[Phase]:
        """This phase and all inside it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


def tree(steps: Steps, bytes_of: Mapping[Path, float]) -> Phase:
    """The phases of a mean step; `bytes_of` gives the bytes that a phase reads in one step.

    A phase with spans of its own takes as long as they say; one without as long as its children's.

    Raises ProfileError where nothing was timed, where bytes belong to a phase that never ran, and
    where children take longer than their parent.
    """
    count = len(steps.step_ns)
    if count == 0 or not steps.spans:
        raise ProfileError("Nothing was timed: the step had no phases.")
    strangers = sorted("/".join(p) for p in bytes_of if not below(steps.spans, p))
    if strangers:
        raise ProfileError(f"The step never ran {strangers[0]}, which has bytes to read.")
    whole_ms = sum(steps.step_ns) / count / 1e6
    root = replace(_phase(steps.spans, (), count, bytes_of), ms=whole_ms)
    check(root)
    return root


def _phase(spans: Sequence[Span], path: Path, count: int, bytes_of: Mapping[Path, float]) -> Phase:
    depth = len(path)
    own = [span for span in spans if span.path == path]
    inside = [span for span in spans if len(span.path) > depth]
    names = dict.fromkeys(span.path[depth] for span in inside)
    groups = [below(inside, (*path, name)) for name in names]
    children = tuple(
        _phase(group, (*path, name), count, bytes_of)
        for name, group in zip(names, groups, strict=True)
    )
    apart = sum(union_ns(group) for group in groups)
    return Phase(
        path=path,
        ms=union_ns(own or inside) / count / 1e6,
        launches=(len(own) or sum(c.launches for c in children) * count) / count,
        bytes=bytes_of.get(path, 0.0) + sum(child.bytes for child in children),
        overlap_ms=max(0.0, apart - union_ns(inside)) / count / 1e6,
        children=children,
    )


def check(root: Phase) -> None:
    """Raise ProfileError for the first phase whose children take longer than it does."""
    for phase in root.walk():
        limit = phase.ms * (1 + SLACK) + SLACK_MS
        together = sum(child.ms for child in phase.children) - phase.overlap_ms
        if together > limit:
            raise ProfileError(
                f"The phases inside {phase.name} take {together:.4f} ms, but {phase.name} itself "
                f"takes {phase.ms:.4f} ms; one of the two clocks is wrong."
            )
        longest = max(phase.children, key=lambda child: child.ms, default=None)
        if longest is not None and longest.ms > limit:
            raise ProfileError(
                f"{longest.name} takes {longest.ms:.4f} ms, longer than {phase.name}, "
                f"of which it is a part, with {phase.ms:.4f} ms."
            )
