"""How a program begins: Ctrl-C is one sentence and exit code 1, also while its imports run."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

INTERRUPTED = 1
DOCUMENT = b'{\n "error": "interrupted.",\n "exit_code": 1\n}\n'


def enter(name: str, module: str) -> int:
    """Run the module's `main`; its exit code, or 1 after Ctrl-C."""
    try:
        with _leaving(name):
            program = importlib.import_module(module)
        code: int = program.main()
    except KeyboardInterrupt:
        _tell(name)
        return INTERRUPTED
    return code


@contextmanager
def _leaving(name: str) -> Iterator[None]:
    """Leave at once on Ctrl-C: nothing has begun that could be ended well.

    No exception, because a library that is being loaded may swallow it or raise another instead.
    """

    def leave(*_: object) -> None:
        _tell(name)
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


def _tell(name: str) -> None:
    """One sentence, and the document that `--json` promises; a stream may be closed by now."""
    with suppress(OSError):
        os.write(2, f"{name}: interrupted.\n".encode())
    if "--json" in sys.argv:
        with suppress(OSError):
            os.write(1, DOCUMENT)
