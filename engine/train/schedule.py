"""How far a training is, by steps or by the clock, and what follows from it."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """Warm-up, plateau, linear decay; and when rounding and row selection begin."""

    warm_steps: int = 100
    decay_from: float = 0.45
    last: float = 0.02
    quantise_from: float = 0.5
    sparse_from: float = 0.75

    def factor(self, step: int, fraction: float) -> float:
        """Share of the full learning rate."""
        warm = min(1.0, (step + 1) / self.warm_steps)
        if fraction <= self.decay_from:
            return warm
        left = (1.0 - fraction) / (1.0 - self.decay_from)
        return warm * max(self.last, left)


class Budget:
    """Fraction of a training that is done: of `steps`, or of `seconds` from now on.

    A budget of seconds counts from its making, so that compilation is inside it, but the fraction
    stays where it began until `settled` is called once the steps run at full speed.
    """

    def __init__(
        self, *, steps: int | None = None, seconds: float | None = None, begun: float = 0.0
    ) -> None:
        if (steps is None) == (seconds is None):
            raise ValueError("a budget is either of steps or of seconds")
        self.steps, self._begun = steps, begun
        self._deadline_s = time.monotonic() + (seconds or 0.0)
        self._settled_s: float | None = None

    def settled(self) -> None:
        """The clock starts to count (only the first call matters)."""
        if self._settled_s is None:
            self._settled_s = time.monotonic()

    def fraction(self, step: int) -> float:
        """0 .. 1 before step number `step`; 1 or more means stop."""
        if self.steps is not None:
            return step / self.steps
        now = time.monotonic()
        if now >= self._deadline_s:
            return 1.0
        if self._settled_s is None:
            return self._begun
        span = max(self._deadline_s - self._settled_s, 1e-3)
        return self._begun + (1.0 - self._begun) * (now - self._settled_s) / span
