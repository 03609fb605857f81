"""The loop's own clock beside the engine's: an engine that patched its timers is out of step.

While a run is attended the length of its log is noted with the time, by the clock of the process
that looks. An event that was not there yet at a look cannot have happened before it, one that was
there cannot happen later. So the time stamps of a log are held to this clock, and the durations
that it states to its time stamps.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flywheel.run.events import Event
from flywheel.run.parse import sealed_events
from flywheel.run.refusal import RefusedLogError

# An event is stamped a moment before it is written: on a busy box, a long moment.
SLACK_NS = 500_000_000
# Timed work fills the time between the events that report it, but for this share, a moment each and
# one pause of a busy box.
LEAST_SHARE = 0.9
MOMENT_NS = 2_000_000
PAUSE_NS = 250_000_000
_TIMED = ("plain", "point")


@dataclass(frozen=True, slots=True)
class Look:
    """A length of a log, and the monotonic times at which it was seen first and last."""

    first_ns: int
    last_ns: int
    length_bytes: int


class Stopwatch:
    """Notes the length of a run's log whenever it is asked to."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.looks: list[Look] = []

    def look(self) -> None:
        """Take a note; a log that is not there yet is empty."""
        now_ns = time.monotonic_ns()
        try:
            length = self._log.stat().st_size
        except OSError:
            length = 0
        if not self.looks or self.looks[-1].length_bytes != length:
            self.looks.append(Look(now_ns, now_ns, length))
        else:
            self.looks[-1] = Look(self.looks[-1].first_ns, now_ns, length)


def contradiction(text: str, nonce: str, looks: Sequence[Look]) -> str | None:
    """In what a log's times cannot be true; None when they can, as far as anybody looked.

    A log that is no log of that nonce is for the parser to refuse, and None here.
    """
    try:
        events = sealed_events(text, nonce)
    except RefusedLogError:
        return None
    ends = _ends(text)
    return _against_looks(events, ends, looks) or _unaccounted(events)


def _ends(text: str) -> list[int]:
    """Where each line of a log ends, in bytes."""
    ends, place = [], 0
    for line in text.split("\n"):
        place += len(line.encode("utf-8", "surrogateescape")) + 1
        ends.append(place)
    return ends


def _against_looks(
    events: Sequence[Event], ends: Sequence[int], looks: Sequence[Look]
) -> str | None:
    for event in events:
        t_ns, end = event.integer("t_ns"), ends[event.line - 1]
        before = [look.last_ns for look in looks if look.length_bytes < end]
        after = [look.first_ns for look in looks if look.length_bytes >= end]
        if before and t_ns < max(before) - SLACK_NS:
            late_s = (max(before) - t_ns) / 1e9
            return f"the {event.name} event says it is {late_s:.1f} s older than it can be"
        if after and t_ns > min(after) + SLACK_NS:
            return f"the {event.name} event says it is of a time that had not come yet"
    return None


def _unaccounted(events: Sequence[Event]) -> str | None:
    """Whether the generations claim much less time than passed while they were made."""
    claimed = passed = 0
    previous = 0
    for event in events:
        t_ns = event.integer("t_ns")
        if event.name in _TIMED:
            claimed += event.integer("prefill_ns") + event.integer("decode_ns")
            passed += max(0, t_ns - previous - MOMENT_NS)
        if event.name != "heartbeat":
            previous = t_ns
    if claimed >= passed * LEAST_SHARE - PAUSE_NS:
        return None
    return (
        f"{claimed / 1e9:.1f} s of generations took {passed / 1e9:.1f} s of its own clock: "
        "its timers do not agree"
    )
