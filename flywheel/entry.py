"""How a program begins: Ctrl-C is one sentence and exit code 1, also while imports run."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from contextlib import suppress
from types import FrameType

INTERRUPTED = 1
DOCUMENT = b'{\n "error": "interrupted.",\n "exit_code": 1\n}\n'
_IMPORT = "<frozen importlib._bootstrap>"  # the code that every import runs


def enter(name: str, module: str) -> int:
    """Run the module's `main`; its exit code, or 1 after Ctrl-C."""

    def answer(signum: int, frame: FrameType | None) -> None:
        if _importing(frame):
            _tell(name)
            os._exit(INTERRUPTED)
        signal.default_int_handler(signum, frame)

    # Whoever had it ignored, as a shell does in the background, wants it ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, answer)
    try:
        code: int = importlib.import_module(module).main()
    except KeyboardInterrupt:
        _tell(name)
        code = INTERRUPTED
    # After an interrupt within an eval of text, as of an annotation, the interpreter means to end
    # by the signal, whoever caught it. Another text clears that.
    exec("")
    return code


def _importing(frame: FrameType | None) -> bool:
    """Whether a module is being loaded, which may swallow an exception or raise another instead."""
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT:
            return True
        frame = frame.f_back
    return False


def _tell(name: str) -> None:
    """One sentence, and the document that `--json` promises; a stream may be closed by now."""
    with suppress(OSError):
        os.write(2, f"{name}: interrupted.\n".encode())
    if "--json" in sys.argv:
        with suppress(OSError):
            os.write(1, DOCUMENT)
