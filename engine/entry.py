"""How a program of this package begins and ends.

Ctrl-C is one sentence, also while its imports run, and so is a full disk; output that nobody reads
is no crash.
"""

from __future__ import annotations

import errno
import importlib
import os
import select
import signal
import sys
from contextlib import suppress
from types import FrameType

FAILED, INTERRUPTED = 1, 130
_STDOUT = 1
_IMPORT = "<frozen importlib._bootstrap>"  # the code that every import runs


def enter(package: str) -> int:
    """Run `main` of the package's module `command`.

    Returns its exit code; 130 after Ctrl-C, 1 where its output was not read or not written.
    """

    def answer(signum: int, frame: FrameType | None) -> None:
        if _importing(frame):
            _tell(package)
            os._exit(INTERRUPTED)
        signal.default_int_handler(signum, frame)

    # Whoever had it ignored, as a shell does in the background, wants it ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, answer)
    try:
        code: int = importlib.import_module(f"{package}.command").main()
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        _tell(package)
        code = INTERRUPTED
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            if not _unread():
                raise
        elif error.errno == errno.ENOSPC:
            _tell(package, f"{error.strerror}")
        else:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)  # for what is still to be flushed
        code = FAILED
    # After an interrupt within an eval of text, as of an annotation, the interpreter means to end
    # by the signal, whoever caught it. Another text clears that.
    exec("")
    return code


def _unread() -> bool:
    """Whether whoever read standard output has left."""
    poll = select.poll()
    poll.register(_STDOUT, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def _importing(frame: FrameType | None) -> bool:
    """Whether a module is being loaded, which may swallow an exception or raise another instead."""
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT:
            return True
        frame = frame.f_back
    return False


def _tell(package: str, what: str = "interrupted") -> None:
    """One sentence; the stream may be closed by now."""
    with suppress(OSError):
        os.write(2, f"{package}: {what}.\n".encode())
