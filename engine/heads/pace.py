"""How far a stage is and what is left of it, in a line about every ten seconds."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from engine.train.progress import say

EVERY_S = 10.0


@dataclass(slots=True)
class Pace:
    """Counts items of a stage; `done` may begin above zero where a stage goes on."""

    name: str
    total: int
    unit: str
    done: int = 0
    _first: int = field(init=False)
    _began_s: float = field(init=False)
    _said_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._first = self.done
        self._began_s = self._said_s = time.monotonic()

    def step(self, count: int = 1, extra: str = "") -> None:
        """Note `count` more items; speak when it is time to, and at the end."""
        self.done += count
        now = time.monotonic()
        if now - self._said_s >= EVERY_S or self.done >= self.total:
            self._said_s = now
            say(f"{self.name}: {self.done} of {self.total} {self.unit}{extra}, {self.left()}")

    def left_s(self) -> float | None:
        """Seconds left at the pace so far; None before anything was done."""
        made = self.done - self._first
        if not made:
            return None
        return (time.monotonic() - self._began_s) / made * max(0, self.total - self.done)

    def left(self) -> str:
        """The time left in words."""
        seconds = self.left_s()
        if seconds is None:
            return "time left unknown"
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02d} s left" if minutes else f"{rest} s left"
