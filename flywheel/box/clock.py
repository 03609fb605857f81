"""Time: monotonic for every duration and decision, wall time only to show and for the window."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime, time as day_time, timedelta
from typing import Protocol
from zoneinfo import ZoneInfo

from flywheel.errors import UsageError

_WINDOW = re.compile(r"^([01]?\d|2[0-3]):([0-5]\d)\s*-\s*([01]?\d|2[0-3]):([0-5]\d)$")


class Clock(Protocol):
    """What the daemon needs of time; tests hand in one that they move themselves."""

    def monotonic_s(self) -> float:
        """Seconds that never jump."""

    def now(self) -> datetime:
        """Wall time, timezone aware, in the box's own zone."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The machine's clocks."""

    def monotonic_s(self) -> float:
        """Seconds of CLOCK_MONOTONIC."""
        return time.monotonic()

    def now(self) -> datetime:
        """Wall time in the local zone."""
        return datetime.now().astimezone()

    def sleep(self, seconds: float) -> None:
        """Sleep for at least ``seconds``."""
        time.sleep(seconds)


def utc_text(moment: datetime | None = None) -> str:
    """``2026-11-28T22:00:05Z``: the form of every displayed or stored wall time."""
    when = datetime.now(UTC) if moment is None else moment.astimezone(UTC)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class Window:
    """The hours of the day in which runs may start, in the box's local time."""

    opens: day_time
    closes: day_time

    @classmethod
    def parse(cls, text: str) -> Window:
        """``22:00-07:00``; a window may cross midnight, but not be empty."""
        match = _WINDOW.match(text.strip())
        if match is None:
            raise UsageError(f"--window wants HH:MM-HH:MM such as 22:00-07:00, not {text!r}.")
        hour_a, minute_a, hour_b, minute_b = (int(part) for part in match.groups())
        opens, closes = day_time(hour_a, minute_a), day_time(hour_b, minute_b)
        if opens == closes:
            raise UsageError(f"--window {text} is empty: it opens and closes at the same minute.")
        return cls(opens, closes)

    def contains(self, moment: datetime) -> bool:
        """Whether the window is open at that wall time."""
        at = moment.time().replace(second=0, microsecond=0, tzinfo=None)
        if self.opens < self.closes:
            return self.opens <= at < self.closes
        return at >= self.opens or at < self.closes

    def left_s(self, moment: datetime) -> float:
        """Seconds until the window shuts, 0 while it is shut.

        It looks at the clock on the wall of every minute to come, so a change to or from summer
        time in between counts for what it is.
        """
        if not self.contains(moment):
            return 0.0
        to_full_s = 60.0 - moment.second - moment.microsecond / 1e6
        for minute in range(26 * 60):
            if not self.contains(_later(moment, to_full_s + 60.0 * minute)):
                return to_full_s + 60.0 * minute
        return 26 * 3600.0

    @property
    def length_s(self) -> float:
        """How long the window is open on an ordinary day."""
        minutes = [at.hour * 60 + at.minute for at in (self.opens, self.closes)]
        return (minutes[1] - minutes[0]) % (24 * 60) * 60.0

    def __str__(self) -> str:
        return f"{self.opens:%H:%M}-{self.closes:%H:%M}"


def _later(moment: datetime, seconds: float) -> datetime:
    """The wall time of an instant after ``moment``: in its named zone, else in the box's own."""
    instant = moment.astimezone(UTC) + timedelta(seconds=seconds)
    if isinstance(moment.tzinfo, ZoneInfo):
        return instant.astimezone(moment.tzinfo)
    at_home = moment.utcoffset() == moment.astimezone().utcoffset()
    return instant.astimezone(None if at_home else moment.tzinfo)


def span_text(seconds: float) -> str:
    """``9 h 12 min``, ``4 min 05 s`` or ``7 s``."""
    whole = max(0, round(seconds))
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    if whole >= 60:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole} s"


def count(number: int, what: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
