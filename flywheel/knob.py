"""A knob: a field of the configuration that sits next to a phase of the profile. Pure data.

Where a phase loses time, its knobs say what could be tried there without anybody having to think of
it. Knows nothing of the engine: a value that it refuses makes a void run, not a wrong number.
"""

from __future__ import annotations

from dataclasses import dataclass

from flywheel.errors import LeverError


@dataclass(frozen=True, slots=True)
class Knob:
    """One field and the values that may be tried, best guesses first.

    `phase` is the path of a phase in the profile; the knob belongs to it and to all phases inside
    it. With a `part` the field is text such as ``columns=64,stages=6``, and only that part of it is
    set. `share` is how much of what is left to gain in the phase a good value is expected to
    bring. `hot`, `slow` and `needs` are those of the levers that come of it.
    """

    phase: str
    field: str
    values: tuple[object, ...]
    claim: str
    part: str = ""
    share: float = 0.1
    hot: bool = True
    slow: bool = False
    needs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (self.phase and self.field and self.values and self.claim):
            raise LeverError("a knob needs a phase, a field, values and a claim")
        if not 0.0 < self.share < 1.0:
            raise LeverError(f"the knob {self.field} expects a share of {self.share}")

    def at(self, phase: str) -> bool:
        """Whether it sits next to that phase."""
        return phase == self.phase or phase.startswith(f"{self.phase}/")

    def stands_at(self, value: object, now: object) -> bool:
        """Whether the field, where it is at `now`, has the knob at `value` already."""
        if not self.part:
            return type(value) is type(now) and value == now
        return f"{self.part}={value}" in str(now or "").split(",")

    def set_to(self, value: object, now: object) -> object:
        """The field's value once the knob is at `value`, where the field is at `now`."""
        if not self.part:
            return value
        before = (one.split("=", 1) for one in str(now or "").split(",") if "=" in one)
        parts = {**dict(before), self.part: value}
        return ",".join(f"{name}={parts[name]}" for name in sorted(parts))
