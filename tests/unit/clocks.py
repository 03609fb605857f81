"""A clock for tests: both of its hands are moved by hand, and sleeping moves them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class FakeClock:
    """``slept`` lists every sleep; ``step`` moves the wall clock alone, as a correction does."""

    def __init__(self, now: datetime = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)) -> None:
        self.at_s = 100.0
        self.wall = now
        self.slept: list[float] = []

    def monotonic_s(self) -> float:
        return self.at_s

    def now(self) -> datetime:
        return self.wall

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.pass_s(seconds)

    def pass_s(self, seconds: float) -> None:
        """Time goes by."""
        self.at_s += seconds
        self.wall += timedelta(seconds=seconds)

    def step(self, seconds: float) -> None:
        """Somebody sets the wall clock."""
        self.wall += timedelta(seconds=seconds)
