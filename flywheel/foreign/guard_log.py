"""The memory guard's log of the foreign project, in all three of its dialects. Pure and total.

Guards append to one file and may overlap, and a session may end without a word: the machine died,
or the guard did. Such a session is counted, never completed by guessing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from flywheel.run.refusal import Refusal

PREFIX = "[memguard]"
# The checkpoint alone takes more than what is left above this: nothing was loaded.
UNLOADED_MB = 100_000
_KEPT = 20
_MOST_SESSIONS = 100_000

_INT = r"(\d{1,9})"
_WHEN = r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d)"
_PID = rf"KILLING pid {_INT} {_WHEN}"


def _line(text: str) -> re.Pattern[str]:
    return re.compile(r"\[memguard\] " + text + r"\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Kill:
    """`before_mb` is what was available when it fired; `after_mb` what it then found."""

    cause: str
    pid: int
    when: str
    before_mb: int
    fall_mb_s: int | None
    floor_mb: int
    line: int
    after_mb: int | None = None

    @property
    def freed_nothing(self) -> bool:
        """Still under the floor afterwards: the kill did not save the machine."""
        return self.after_mb is not None and self.after_mb < self.floor_mb

    def sentence(self) -> str:
        """What happened, in one line."""
        after = "nothing more is known" if self.after_mb is None else f"{self.after_mb} MB after"
        verdict = "; it freed nothing" if self.freed_nothing else ""
        return f"{self.when} pid {self.pid} ({self.cause}): {self.before_mb} MB before, " + (
            after + verdict
        )


@dataclass(frozen=True, slots=True)
class Session:
    """One guard from its start to its last word; `ending` is left, killed, exhausted or open."""

    dialect: str
    floor_mb: int
    pattern: str
    started: str
    line: int
    floor_polls: int = 1
    poll_s: float = 0.0
    slope_mb_s: int | None = None
    pid: int | None = None
    ending: str = "open"
    ended: str = ""
    low_water_mb: int | None = None
    peak_fall_mb_s: int | None = None
    kill: Kill | None = None

    @property
    def armed(self) -> bool:
        """False when the lowest memory it saw proves that it watched the wrong process."""
        return self.low_water_mb is None or self.low_water_mb < UNLOADED_MB


@dataclass(frozen=True, slots=True)
class GuardLog:
    """All sessions in the order of their starts."""

    sessions: tuple[Session, ...]
    broken: tuple[Refusal, ...]
    lines: int

    @property
    def kills(self) -> tuple[Kill, ...]:
        """Every kill."""
        return tuple(s.kill for s in self.sessions if s.kill is not None)

    @property
    def low_water_mb(self) -> int | None:
        """The lowest memory of an armed session that ended by itself."""
        seen = [s.low_water_mb for s in self.sessions if s.armed and s.low_water_mb is not None]
        return min(seen, default=None)

    @property
    def peak_fall_mb_s(self) -> int | None:
        """The fastest fall that any session reported."""
        return max((s.peak_fall_mb_s for s in self.sessions if s.peak_fall_mb_s is not None),
                   default=None)

    def as_dict(self) -> dict[str, object]:
        """Plain JSON."""
        counts = {e: sum(s.ending == e for s in self.sessions)
                  for e in ("left", "killed", "exhausted", "open")}
        return {
            "sessions": len(self.sessions),
            "endings": counts,
            "dialects": sorted({s.dialect for s in self.sessions}),
            "kills": len(self.kills),
            "kills_by_cause": {c: sum(k.cause == c for k in self.kills)
                               for c in ("level", "slope")},
            "kills_that_freed_nothing": [k.sentence() for k in self.kills if k.freed_nothing],
            "not_armed": [f"{s.started} ({s.pattern})" for s in self.sessions if not s.armed],
            "low_water_mb": self.low_water_mb,
            "peak_fall_mb_s": self.peak_fall_mb_s,
        }


class Reader:
    """Takes lines one by one; `log()` is what they said."""

    def __init__(self) -> None:
        self._sessions: list[Session] = []
        self._open: list[int] = []
        self._killed: list[int] = []
        self._last: datetime | None = None
        self._broken: list[Refusal] = []
        self._lines = 0

    def feed(self, line: int, text: str) -> None:
        """One line, without its newline."""
        self._lines = line
        if not text.strip():
            return
        for pattern, handle in _SHAPES:
            if match := pattern.match(text):
                handle(self, match, line)
                return
        self._break("malformed_line", "this is no line of a guard, or a cut one", line)

    def log(self) -> GuardLog:
        """Everything read so far."""
        return GuardLog(tuple(self._sessions), tuple(self._broken), self._lines)

    def _break(self, code: str, detail: str, line: int) -> None:
        if len(self._broken) < _KEPT:
            self._broken.append(Refusal(code, detail, line))

    def _at(self, text: str, line: int) -> None:
        try:
            when = datetime.fromisoformat(text)
        except ValueError:
            self._break("malformed_line", f"{text} is no time", line)
            return
        if self._last is not None and when < self._last:
            self._break("out_of_order", f"{text} comes after a later time", line)
        self._last = when

    def _start(self, m: re.Match[str], line: int) -> None:
        self._at(m[7], line)
        if len(self._sessions) >= _MOST_SESSIONS:
            self._break("too_many_sessions", f"more than {_MOST_SESSIONS} sessions", line)
            return
        dialect = "slope" if m[3] else "level_times" if m[2] else "level_once"
        self._sessions.append(Session(
            dialect, int(m[1]), m[6], m[7], line, int(m[2] or 1), float(m[5]),
            int(m[3]) if m[3] else None,
        ))  # fmt: skip
        self._open.append(len(self._sessions) - 1)

    def _watch(self, m: re.Match[str], line: int) -> None:
        # Overlapping guards announce themselves in the order in which they started.
        waiting = [i for i in self._open if self._sessions[i].pid is None
                   and self._sessions[i].pattern == m[2]]
        if not waiting:
            self._break("out_of_order", f"a guard of pid {m[1]} that never started", line)
            return
        self._change(waiting[-1], pid=int(m[1]))

    def _left(self, m: re.Match[str], line: int) -> None:
        self._at(m[3], line)
        index = self._close(line)
        if index is not None:
            self._change(index, ending="left", ended=m[3], low_water_mb=int(m[1]),
                         peak_fall_mb_s=None if m[2] is None else int(m[2]))

    def _level(self, m: re.Match[str], line: int) -> None:
        self._kill(Kill("level", int(m[4]), m[5], int(m[1]), None, int(m[2]), line))

    def _slope(self, m: re.Match[str], line: int) -> None:
        floor = self._sessions[self._open[-1]].floor_mb if self._open else 0
        self._kill(Kill("slope", int(m[3]), m[4], int(m[1]), int(m[2]), floor, line))

    def _kill(self, kill: Kill) -> None:
        self._at(kill.when, kill.line)
        named = [i for i in self._open if self._sessions[i].pid == kill.pid]
        index = self._close(kill.line, named[-1] if named else None)
        if index is not None:
            self._change(index, ending="killed", ended=kill.when, kill=kill)
            self._killed.append(index)

    def _after(self, m: re.Match[str], line: int) -> None:
        if not self._killed:
            self._break("out_of_order", "a kill's outcome without the kill", line)
            return
        index = self._killed.pop()
        kill = self._sessions[index].kill
        assert kill is not None
        self._change(index, kill=replace(kill, after_mb=int(m[1])))

    def _exhausted(self, _m: re.Match[str], line: int) -> None:
        index = self._close(line)
        if index is not None:
            self._change(index, ending="exhausted")

    def _close(self, line: int, index: int | None = None) -> int | None:
        """Take a session off the open ones: the one named, else the newest."""
        if not self._open:
            self._break("out_of_order", "the end of a guard that never started", line)
            return None
        chosen = self._open[-1] if index is None else index
        self._open.remove(chosen)
        return chosen

    def _change(self, index: int, **values: object) -> None:
        self._sessions[index] = replace(self._sessions[index], **values)  # type: ignore[arg-type]


_SHAPES: tuple[tuple[re.Pattern[str], Callable[[Reader, re.Match[str], int], None]], ...] = (
    (_line(rf"floor={_INT} ?MB(?: x{_INT})?(?: slope=<-{_INT}MB/s below {_INT}MB)? "
           rf"poll=(\d{{1,6}}(?:\.\d{{1,6}})?)s pat=(\S+) started {_WHEN}"), Reader._start),
    (_line(rf"watching pid {_INT} \((\S+)\)"), Reader._watch),
    (_line(rf"victim gone, exiting\. low-water (?:was )?{_INT} MB"
           rf"(?:, peak fall rate {_INT} MB/s)? {_WHEN}"), Reader._left),
    (_line(rf"!!! MemAvailable {_INT} MB < floor {_INT} MB(?: x{_INT})? — {_PID}"), Reader._level),
    (_line(rf"!!! MemAvailable {_INT} MB falling {_INT} MB/s \(.*\): .* — {_PID}"), Reader._slope),
    (_line(rf"killed\. MemAvailable now {_INT} MB"), Reader._after),
    (_line(r"meminfo exhausted, exiting"), Reader._exhausted),
)  # fmt: skip
