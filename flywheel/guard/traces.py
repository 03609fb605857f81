"""Memory as it fell on real boxes, as functions of time, and what a guard must make of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from flywheel.guard.limits import MB, Limits, limits

GB = 1000 * MB
# The box of the recorded falls: 122.8 GiB of unified memory, healthy down to 2389 MB.
BOX_BYTES = 131_855_000_000
HEALTHY_LOW_BYTES = 2389 * MB
STEEP_BYTES_PER_S = 11 * GB


@dataclass(frozen=True, slots=True)
class Trace:
    """One course of available memory.

    ``level_bytes(s)`` is the truth ``s`` seconds after the guard began to look, negative where
    the box would have been dead; it lasts ``lasts_s`` or until the kill.  ``verdict`` and
    ``trigger`` (None: any) are what must come of it, ``in_time`` whether memory must be left at
    the kill, or must not.
    """

    name: str
    what: str
    limits: Limits
    level_bytes: Callable[[float], float]
    lasts_s: float
    verdict: str
    trigger: str | None = None
    in_time: bool = True
    before_bytes: int = 8 * GB


def _load(from_bytes: float, to_bytes: float, after_s: float = 0.0) -> Callable[[float], float]:
    """A level that begins to fall at 11 GB/s after a while, and stops at another."""

    def level_bytes(s: float) -> float:
        return max(to_bytes, from_bytes - STEEP_BYTES_PER_S * max(0.0, s - after_s))

    return level_bytes


def _dip(s: float) -> float:
    return 1400 * MB if 0.5 <= s < 0.75 else 2600 * MB


def traces() -> tuple[Trace, ...]:
    """The gate: three that must live, three that must die in time, two that die too late."""
    now = limits(BOX_BYTES, HEALTHY_LOW_BYTES)
    nothing = float("-inf")
    even = replace(now, close_poll_s=now.poll_s, steep_bytes_per_s=0)
    slow = replace(even, poll_s=2.0, close_poll_s=2.0, fall_polls=0)
    runaway = _load(8 * GB, nothing)
    return (
        Trace(
            "healthy_load", "falls at 11 GB/s and stops 400 MB above the danger line",
            now, _load(8 * GB, now.danger_bytes + 400 * MB), 1.5, "left",
        ),
        Trace(
            "dip", "is under the floor for a quarter of a second, then well again",
            now, _dip, 1.5, "left", before_bytes=2600 * MB,
        ),
        Trace(
            "steady", "stays 400 MB above the danger line",
            now, lambda _: now.danger_bytes + 400.0 * MB, 1.0, "left", before_bytes=2400 * MB,
        ),
        Trace(
            "runaway", "falls at 11 GB/s and does not stop", now, runaway, 3.0, "killed", "slope",
        ),
        Trace(
            "sudden_runaway", "stands 400 MB above the danger line, then falls at 11 GB/s",
            now, _load(now.danger_bytes + 400.0 * MB, nothing, 0.7), 3.0, "killed", "slope",
            before_bytes=2400 * MB,
        ),
        Trace(
            "leak", "the last 600 kB above the floor of a leak of 1 MB/s",
            now, lambda s: now.floor_bytes + 0.6 * MB - s * MB, 6.0, "killed", "level",
        ),
        Trace(
            "runaway_even_pace", "the runaway under a guard that looks every 0.2 s throughout",
            even, runaway, 3.0, "killed", in_time=False,
        ),
        Trace(
            "runaway_slow_guard", "the runaway under a guard that wants 3 polls, 2 s apart",
            slow, runaway, 9.0, "killed", in_time=False,
        ),
    )  # fmt: skip
