"""How a program of this package begins: Ctrl-C is one sentence, also while its imports run."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

INTERRUPTED = 130


def enter(package: str) -> int:
    """Run `main` of the package's module `command`; its exit code, or 130 after Ctrl-C."""
    try:
        with _leaving(package):
            program = importlib.import_module(f"{package}.command")
        code: int = program.main()
    except KeyboardInterrupt:
        _tell(package)
        return INTERRUPTED
    return code


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
