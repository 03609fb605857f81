"""Which process is meant: a pid alone is reused, a pid with its start time and boot is not.

Standard library only, because the supervisor of a run imports it.  Everything here reads
``/proc``; it knows nothing of runs, leases or the ledger.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping
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
class Process:
    """One line of the process table: ``state`` is the kernel's letter, Z and X are dead."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    start_ticks: int

    @property
    def dead(self) -> bool:
        """Whether only its name is left."""
        return self.state in "ZX"


def boot_id() -> str:
    """The kernel's random id of this boot, or ``unknown`` where there is none."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def process_of(text: bytes, pid: int) -> Process | None:
    """The process in the text of its ``/proc/<pid>/stat``."""
    # The command name sits in brackets and may itself hold spaces and brackets.
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    return Process(
        pid, fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19])
    )


def _stat(pid: int) -> Process | None:
    try:
        fd = os.open(f"{_PROC}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return process_of(os.read(fd, 1024), pid)
    except OSError:
        return None
    finally:
        os.close(fd)


def processes() -> dict[int, Process]:
    """The process table now, the dead included."""
    found = (_stat(int(entry)) for entry in os.listdir(_PROC) if entry.isdigit())
    return {process.pid: process for process in found if process is not None}


def of(pid: int, *, zombie: bool = False) -> Identity | None:
    """The identity of a running process; None when there is none or, unless asked, a zombie."""
    stat = _stat(pid)
    if stat is None or (stat.dead and not zombie):
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
    return tuple(
        sorted(
            one.pid
            for one in processes().values()
            if one.group == leader.pid
            and not one.dead
            and one.start_ticks >= leader.start_ticks
            and session in (None, one.session)
        )
    )


def family_of(
    table: Mapping[int, Process],
    leader: Identity,
    supervisor: Identity | None = None,
    spare: Collection[int] = (),
) -> tuple[Process, ...]:
    """Who is left of a run in a process table; pure.

    Whoever is in the leader's process group or descends from it; and, if a ``supervisor`` is named
    that leads a session of its own, whoever is in that session or descends from it.  So neither
    a new group nor a new session hides a process.  The supervisor itself and ``spare`` are not
    named.  A pid that now belongs to a younger process ties nobody.
    """
    found: dict[int, Process] = {}
    roots = set()
    for one, tie in ((leader, "group"), (supervisor, "session")):
        if one is None:
            continue
        holder = table.get(one.pid)
        if holder is not None and holder.start_ticks != one.start_ticks:
            continue
        roots.add(one.pid)
        for process in table.values():
            if getattr(process, tie) == one.pid and process.start_ticks >= one.start_ticks:
                found[process.pid] = process
    grown = True
    while grown:
        grown = False
        for process in table.values():
            if process.pid not in found and (process.parent in found or process.parent in roots):
                found[process.pid] = process
                grown = True
    left_out = {*spare, 0 if supervisor is None else supervisor.pid}
    return tuple(one for one in found.values() if one.pid not in left_out and not one.dead)


def family(
    leader: Identity, supervisor: Identity | None = None, spare: Collection[int] = ()
) -> tuple[Identity, ...]:
    """Who is left of a run now: see ``family_of``."""
    boot = boot_id()
    if leader.boot_id != boot:
        return ()
    return tuple(
        Identity(one.pid, one.start_ticks, boot)
        for one in family_of(processes(), leader, supervisor, spare)
    )


def send(process: Identity, signum: int) -> bool:
    """Signal exactly this process; False when it is gone.

    Through a pidfd where the kernel has one: it is opened first and the identity compared after,
    so the pid cannot change hands in between.
    """
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except (OSError, AttributeError):
        fd = -1
    try:
        if not is_alive(process):
            return False
        if fd >= 0:
            signal.pidfd_send_signal(fd, signum)
        else:
            os.kill(process.pid, signum)
    except ProcessLookupError:
        return False
    finally:
        if fd >= 0:
            os.close(fd)
    return True


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
    return _end(
        lambda: group_members(leader, session),
        lambda signum: signal_group(leader, signum, session),
        grace_s,
    )


def end_family(
    leader: Identity,
    supervisor: Identity | None,
    grace_s: float,
    *,
    spare: Collection[int] = (),
) -> bool:
    """TERM, then KILL after ``grace_s``, for all that is left of a run; True when nobody is."""

    # Once its parent is dead nothing ties a process of a session of its own to the run any more.
    known: set[Identity] = set()

    def members() -> tuple[Identity, ...]:
        known.update(family(leader, supervisor, spare))
        return tuple(one for one in known if is_alive(one))

    def signal_all(signum: int) -> bool:
        return sum(send(one, signum) for one in members()) > 0

    return _end(members, signal_all, grace_s)


def _end(
    members: Callable[[], Collection[object]], signal_all: Callable[[int], bool], grace_s: float
) -> bool:
    if not signal_all(signal.SIGTERM):
        return not members()
    for signum, patience_s in ((0, grace_s), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            if signum:
                # Again in every round: somebody may have been forked between list and signal.
                signal_all(signum)
            if not members():
                return True
            time.sleep(0.02)
    return not members()
