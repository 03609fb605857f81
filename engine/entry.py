"""How a program of this package begins and ends.

Ctrl-C is one sentence, also while its imports run; output that nobody reads is no crash.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

FAILED, INTERRUPTED = 1, 130
_STDOUT = 1


def enter(package: str) -> int:
    """Run `main` of the package's module `command`; its exit code, 130 after Ctrl-C, 1 unread."""
    try:
        with _leaving(package):
            program = importlib.import_module(f"{package}.command")
        code: int = program.main()
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        _tell(package)
        return INTERRUPTED
    except BrokenPipeError:
        if not _unread():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)  # for what is still to be flushed
        return FAILED
    return code


def _unread() -> bool:
    """Whether whoever read standard output has left."""
    poll = select.poll()
    poll.register(_STDOUT, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


@contextmanager
def _leaving(package: str) -> Iterator[None]:
    """Leave at once on Ctrl-C: nothing has begun that could be ended well.

    No exception, because a library that is being loaded may swallow it or raise another instead.
    """

    def leave(*_: object) -> None:
        _tell(package)
        os._exit(INTERRUPTED)

    # Whoever had it ignored, as a shell does in the background, wants it ignored.
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeded:
        signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        if heeded:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _tell(package: str) -> None:
    """One sentence; the stream may be closed by now."""
    with suppress(OSError):
        os.write(2, f"{package}: interrupted.\n".encode())
