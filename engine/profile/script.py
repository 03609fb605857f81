"""Which launch of a step is which phase: a kernel's name, and the order of its launches. Pure.

A kernel serves several phases (one product, many weights), always in the same order; so the n-th
launch of a name in a step belongs to the n-th phase of its list. A list shorter than the launches
is gone through again and again, once a layer for instance.

A launch may begin before the one before it has ended, and wait. Its phase gets what it adds to the
step: the time from the end of whatever ended last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.profile.phase import ProfileError
from engine.profile.span import Path, Span

OTHER = "other"


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel as the device's tracer saw it."""

    kernel: str
    start_ns: float
    end_ns: float


@dataclass(frozen=True, slots=True)
class Script:
    """Phases by kernel name. Kernels that it does not name are `other`, by their names."""

    phases: Mapping[str, Sequence[Path]]

    def spans(self, launches: Sequence[Launch], steps: int) -> tuple[Span, ...]:
        """The launches of `steps` equal steps, each with its phase.

        Raises ProfileError where a name is launched a number of times that the steps, or its list
        of phases, cannot share out evenly.
        """
        ordered = sorted(launches, key=lambda launch: launch.start_ns)
        each = {name: self._each(name, ordered, steps) for name in {x.kernel for x in ordered}}
        seen = dict.fromkeys(each, 0)
        found, ended = [], float("-inf")
        for launch in ordered:
            paths = self.phases.get(launch.kernel) or ((OTHER, short(launch.kernel)),)
            place = seen[launch.kernel] % each[launch.kernel] % len(paths)
            seen[launch.kernel] += 1
            began, ended = max(launch.start_ns, ended), max(launch.end_ns, ended)
            found.append(Span(paths[place], began, ended))
        return tuple(found)

    def _each(self, name: str, launches: Sequence[Launch], steps: int) -> int:
        """Launches of `name` in one step."""
        count = sum(launch.kernel == name for launch in launches)
        if count % steps:
            raise ProfileError(f"{name} was launched {count} times in {steps} equal steps.")
        phases = len(self.phases.get(name) or ("",))
        if count // steps % phases:
            raise ProfileError(
                f"A step launches {name} {count // steps} times, "
                f"which its {phases} phases cannot share."
            )
        return count // steps


def short(kernel: str) -> str:
    """The name of a C++ kernel alone: without result, namespaces, types and operands."""
    named = re.match(r"(?:void )?(?:[\w ()]+::)*(\w+)", kernel)
    return named[1] if named else kernel
