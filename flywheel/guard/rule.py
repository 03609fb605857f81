"""When a run must die for the box to live.  Pure: readings in, a trigger out; no clock, no I/O.

Two triggers.  LEVEL: under the floor for a number of polls in a row, which also ends the slowest
leak.  SLOPE: under the danger line and falling fast, which ends a runaway while there is still
something left.  Rates are falls over the time that really passed, so a poll that comes late
stretches the time with the fall and is never mistaken for a faster one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

# Shorter spans would measure the kernel's batching of its own counters, not the run.
RATE_SPAN_NS = 40_000_000


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of one kind of memory; ``fall_polls`` 0 switches SLOPE off."""

    floor_bytes: int
    floor_polls: int
    danger_bytes: int
    fall_bytes_per_s: int
    fall_polls: int


@dataclass(frozen=True, slots=True)
class Pace:
    """How often to look, in nanoseconds.

    ``poll_ns`` far from danger.  Nearer, so often that a fall of ``steep_bytes_per_s``, or the
    present one if faster, covers half of what is left above the danger line; never more often
    than ``close_poll_ns``.  ``steep_bytes_per_s`` 0 means an even pace.
    """

    poll_ns: int
    close_poll_ns: int
    steep_bytes_per_s: int


@dataclass(frozen=True, slots=True)
class Reading:
    """Available memory at a moment of the monotonic clock."""

    at_ns: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class Trigger:
    """Why a run must end now: ``level`` or ``slope``, and when the streak of polls began."""

    kind: str
    available_bytes: int
    fall_bytes_per_s: int
    since_ns: int


@dataclass(frozen=True, slots=True)
class State:
    """What the rule remembers of the readings so far."""

    past: tuple[Reading, ...] = ()
    fall_bytes_per_s: int = 0
    low_water_bytes: int | None = None
    peak_fall_bytes_per_s: int = 0
    floor_polls: int = 0
    floor_since_ns: int = 0
    fall_polls: int = 0
    fall_since_ns: int = 0


def _remember(past: tuple[Reading, ...], now: Reading) -> tuple[Reading, ...]:
    """The readings that a rate may need: the youngest one old enough, and all younger ones."""
    first = 0
    while first + 1 < len(past) and now.at_ns - past[first + 1].at_ns >= RATE_SPAN_NS:
        first += 1
    return (*past[first:], now)


def _fall(before: Reading, now: Reading) -> int:
    """Bytes a second between two readings; 0 when no time has passed."""
    span_ns = now.at_ns - before.at_ns
    if span_ns <= 0:
        return 0
    return (before.available_bytes - now.available_bytes) * 1_000_000_000 // span_ns


def step(
    state: State, now: Reading, lines: Lines, pace: Pace
) -> tuple[State, Trigger | None]:
    """The next state, and a trigger when the reading calls for one."""
    past = _remember(state.past, now)
    fall = _fall(past[0], now)
    # A fall that is over but still within the span must not count once more.
    present = min(fall, _fall(state.past[-1], now)) if state.past else 0
    under = now.available_bytes < lines.floor_bytes
    falling = (
        lines.fall_polls > 0
        and now.available_bytes < lines.danger_bytes
        and present > lines.fall_bytes_per_s
    )
    low = state.low_water_bytes
    after = replace(
        state,
        past=past,
        fall_bytes_per_s=fall,
        low_water_bytes=now.available_bytes if low is None else min(low, now.available_bytes),
        peak_fall_bytes_per_s=max(state.peak_fall_bytes_per_s, fall),
        floor_polls=state.floor_polls + 1 if under else 0,
        floor_since_ns=state.floor_since_ns if state.floor_polls else now.at_ns,
        fall_polls=state.fall_polls + 1 if falling else 0,
        fall_since_ns=state.fall_since_ns if state.fall_polls else now.at_ns,
    )
    return after, _trigger(after, now, lines, pace)


def _trigger(state: State, now: Reading, lines: Lines, pace: Pace) -> Trigger | None:
    if lines.fall_polls and state.fall_polls >= lines.fall_polls:
        return Trigger("slope", now.available_bytes, state.fall_bytes_per_s, state.fall_since_ns)
    # Close polls must not shorten the patience of LEVEL: a dip is forgiven for the same time.
    lasted = now.at_ns - state.floor_since_ns >= (lines.floor_polls - 1) * pace.poll_ns
    if state.floor_polls >= lines.floor_polls and lasted:
        return Trigger("level", now.available_bytes, state.fall_bytes_per_s, state.floor_since_ns)
    return None


def wait_ns(state: State, lines: Lines, pace: Pace) -> int:
    """How long to sleep before the next reading."""
    steep = max(pace.steep_bytes_per_s, state.fall_bytes_per_s if pace.steep_bytes_per_s else 0)
    if steep <= 0 or not state.past:
        return pace.poll_ns
    above = max(0, state.past[-1].available_bytes - lines.danger_bytes)
    half_way_ns = above * 500_000_000 // steep
    return min(pace.poll_ns, max(pace.close_poll_ns, half_way_ns))
