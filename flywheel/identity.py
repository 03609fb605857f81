"""Which process is meant: a pid alone is reused, a pid with its start time and boot is not.

Standard library only, because the supervisor of a run imports it.  Everything here reads
``/proc``; it knows nothing of runs, leases or the ledger.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Identity:
    """One process for good: ``start_ticks`` is field 22 of ``/proc/<pid>/stat`` (clock ticks)."""

    pid: int
    start_ticks: int
    boot_id: str

    def to_json(self) -> dict[str, Any]:
        """The identity as a JSON object."""
        return {"pid": self.pid, "start_ticks": self.start_ticks, "boot_id": self.boot_id}

    @classmethod
    def from_json(cls, value: object) -> Identity | None:
        """The identity in a JSON object, or None when the object does not hold one."""
        if not isinstance(value, dict):
            return None
        pid, ticks, boot = value.get("pid"), value.get("start_ticks"), value.get("boot_id")
        if type(pid) is not int or type(ticks) is not int or not isinstance(boot, str):
            return None
        return cls(pid, ticks, boot) if pid > 1 else None


@dataclass(frozen=True, slots=True)
class _Stat:
    state: str
    group: int
    session: int
    start_ticks: int


def boot_id() -> str:
    """The kernel's random id of this boot, or ``unknown`` where there is none."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def _stat(pid: int) -> _Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (OSError, ValueError):
        return None
    # The command name sits in brackets and may itself hold spaces and brackets.
    fields = text[text.rfind(")") + 2 :].split()
    if len(fields) < 20:
        return None
    return _Stat(fields[0], int(fields[2]), int(fields[3]), int(fields[19]))


def of(pid: int, *, zombie: bool = False) -> Identity | None:
    """The identity of a running process; None when there is none or, unless asked, a zombie."""
    stat = _stat(pid)
    if stat is None or (stat.state in "ZX" and not zombie):
        return None
    return Identity(pid, stat.start_ticks, boot_id())


def current() -> Identity:
    """The identity of this process."""
    mine = of(os.getpid())
    return mine if mine is not None else Identity(os.getpid(), 0, boot_id())


def is_alive(identity: Identity | None) -> bool:
    """Whether exactly this process still runs: same pid, same start, same boot, no zombie."""
    return identity is not None and of(identity.pid) == identity


def group_members(leader: Identity, session: int | None = None) -> tuple[int, ...]:
    """Live pids of the process group that ``leader`` founded, whether or not it still lives.

    The kernel does not hand a pid out again while it names a group, so a group with members that
    are all younger than the leader is the leader's, unless the pid now belongs to somebody else.
    """
    if leader.boot_id != boot_id():
        return ()
    holder = _stat(leader.pid)
    if holder is not None and holder.start_ticks != leader.start_ticks:
        return ()
    found = []
    for entry in os.listdir(_PROC):
        if not entry.isdigit():
            continue
        stat = _stat(int(entry))
        if stat is None or stat.group != leader.pid or stat.state in "ZX":
            continue
        if stat.start_ticks < leader.start_ticks:
            continue
        if session is None or stat.session == session:
            found.append(int(entry))
    return tuple(sorted(found))


def signal_group(leader: Identity, signum: int, session: int | None = None) -> bool:
    """Send a signal to the leader's own process group; False when nothing of it is left."""
    if not group_members(leader, session):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader.pid, signum)
        return True
    return False


def end_group(leader: Identity, grace_s: float, session: int | None = None) -> bool:
    """TERM, then KILL after ``grace_s``; True when the group is empty afterwards."""
    if not signal_group(leader, signal.SIGTERM, session):
        return True
    for signum, patience_s in ((0, grace_s), (signal.SIGKILL, 5.0)):
        if signum:
            signal_group(leader, signum, session)
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            if not group_members(leader, session):
                return True
            time.sleep(0.02)
    return not group_members(leader, session)
