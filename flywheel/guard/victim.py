"""The processes that a guard answers for: whether they live, and their end.

A kill begins with SIGSTOP to the engine's whole group: one system call ends the fall at once, and
as nobody can fork any more, whoever left the group is found by descent before a parent's death
cuts the tie.  Then SIGKILL for all.  SIGTERM has no place here: an engine that would tidy up goes
on allocating, and a fast fall leaves it a fifth of a second.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from flywheel.box import identity
from flywheel.box.identity import Identity

KILL_PATIENCE_S = 10.0
# Signals every member of the group of a pidfd's process (Linux 6.9).
_PIDFD_SIGNAL_PROCESS_GROUP = 4


@dataclass(frozen=True, slots=True)
class Buried:
    """How many processes were sent SIGKILL, and the pids that it did not end."""

    killed: int
    stuck: tuple[int, ...]


def bury(
    members: Callable[[], Collection[Identity]],
    send: Callable[[Identity, int], bool],
    *,
    patience_s: float = KILL_PATIENCE_S,
    clock_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Buried:
    """SIGKILL until nobody is left or the patience is; a process in the kernel's hands may stay."""
    struck: set[Identity] = set()
    deadline_s = clock_s() + patience_s
    while True:
        left = members()
        if not left:
            return Buried(len(struck), ())
        if clock_s() >= deadline_s:
            return Buried(len(struck), tuple(sorted(one.pid for one in left)))
        for one in left:
            if send(one, signal.SIGKILL):
                struck.add(one)
        sleep(0.01)


class Victim:
    """The engine of one run and everything that came of it."""

    def __init__(self, engine: Identity, supervisor: Identity | None, *, alone: bool) -> None:
        """``alone``: the supervisor's session and descendants are this run's and nobody else's."""
        self.engine = engine
        self._root = supervisor if alone else None
        self._spare = (os.getpid(), os.getppid())
        self._pidfd = -1
        with contextlib.suppress(OSError, AttributeError):
            self._pidfd = os.pidfd_open(engine.pid)
        self.known = identity.of(engine.pid, zombie=True) == engine
        self._stat = -1
        with contextlib.suppress(OSError):
            # The descriptor stays with this process: a younger one of the same pid is not seen.
            self._stat = os.open(f"/proc/{engine.pid}/stat", os.O_RDONLY | os.O_CLOEXEC)

    @property
    def wakeup_fd(self) -> int:
        """A descriptor that becomes readable when the engine ends; -1 where there is none."""
        return self._pidfd

    def leads(self) -> bool:
        """Whether the engine itself still runs."""
        if not self.known or self._stat < 0:
            return False
        try:
            process = identity.process_of(os.pread(self._stat, 1024, 0), self.engine.pid)
        except OSError:
            return False
        return process is not None and not process.dead

    def members(self) -> tuple[Identity, ...]:
        """Everybody of the run that still lives, the engine included."""
        return identity.family(self.engine, self._root, self._spare)

    def freeze(self) -> None:
        """Stop the engine's group, in one call where nothing else is possible."""
        if not self.leads():
            return
        with contextlib.suppress(OSError):
            if self._pidfd >= 0:
                signal.pidfd_send_signal(
                    self._pidfd, signal.SIGSTOP, None, _PIDFD_SIGNAL_PROCESS_GROUP
                )
                return
        with contextlib.suppress(OSError):
            os.killpg(self.engine.pid, signal.SIGSTOP)

    def kill(self) -> Buried:
        """Freeze, find and kill everybody."""
        self.freeze()
        listed = self.members()
        if self.leads():
            with contextlib.suppress(OSError):
                os.killpg(self.engine.pid, signal.SIGKILL)
        killed = sum(identity.send(one, signal.SIGKILL) for one in listed)
        rest = bury(lambda: _left(listed, self.members()), identity.send)
        return Buried(max(killed, rest.killed, len(listed)), rest.stuck)


def _left(listed: Collection[Identity], now: Collection[Identity]) -> tuple[Identity, ...]:
    """Who still lives of those listed before the kill, and who has come to light since."""
    return tuple({one for one in listed if identity.is_alive(one)} | set(now))
