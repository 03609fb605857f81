"""A child process that does nothing until its parent has written down who it is.

Standard library only.  Between the birth of a process and the note of its identity its parent may
die, and nobody would know whom to end; so the child waits in between, and leaves if its parent is
gone.  ``subprocess`` cannot wait there: it returns only once the program runs.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

_GO = b"g"
_ABANDONED = 125
_FAILED = 127


class Child:
    """A held process in a group of its own; ``release`` turns it into its program."""

    def __init__(
        self, argv: Sequence[str], *, cwd: str, environment: Mapping[str, str], output: Path
    ) -> None:
        """Fork and hold.  ``output`` takes what the program says on stdout and stderr."""
        self._argv, self._cwd = tuple(argv), cwd
        self._environment, self._output = dict(environment), output
        go_read, self._go = os.pipe2(os.O_CLOEXEC)
        self._failure, failure_write = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if self.pid == 0:
            self._become(go_read, failure_write)
        os.close(go_read)
        os.close(failure_write)
        # In both processes, so that the group is there for whoever comes first.
        with contextlib.suppress(OSError):
            os.setpgid(self.pid, self.pid)

    def _become(self, go_read: int, failure_write: int) -> NoReturn:
        try:
            for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE):
                signal.signal(signum, signal.SIG_DFL)
            os.setpgid(0, 0)
            # Nothing is inherited, not even while it is held: no lease, no line to the guard, and
            # no copy of the pipe that would keep it open after the parent's death.
            _close_all_but(go_read, failure_write)
            if os.read(go_read, 1) != _GO:
                os._exit(_ABANDONED)
            os.chdir(self._cwd)
            null = os.open(os.devnull, os.O_RDONLY)
            said = os.open(self._output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            for source, target in ((null, 0), (said, 1), (said, 2)):
                os.dup2(source, target)
            os.execvpe(self._argv[0], self._argv, self._environment)
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.write(failure_write, f"{self._argv[0]}: {error}".encode())
        os._exit(_FAILED)

    def release(self) -> str | None:
        """Let it run; why it could not, or None once the program has taken over."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._go, _GO)
        os.close(self._go)
        with os.fdopen(self._failure, "rb") as stream:
            failure = stream.read()
        if not failure:
            return None
        os.waitpid(self.pid, 0)
        return failure.decode("utf-8", "replace")


def _close_all_but(*kept: int) -> None:
    """Close every descriptor above the standard three that is not ``kept``."""
    highest = max((int(name) for name in os.listdir("/proc/self/fd")), default=1023)
    first = 3
    for descriptor in (*sorted(kept), highest + 1):
        os.closerange(first, descriptor)
        first = descriptor + 1
