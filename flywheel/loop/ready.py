"""How a daemon tells whoever started it that it holds its locks.

A starter hands it a pipe and puts the descriptor's number into ``FLYWHEEL_READY_FD``.
"""

from __future__ import annotations

import contextlib
import os

VARIABLE = "FLYWHEEL_READY_FD"
WORD = b"ready\n"


def tell() -> None:
    """Say it, once; nothing happens in a daemon that nobody waits for."""
    named = os.environ.pop(VARIABLE, "")
    if not named.isdigit():
        return
    # A starter that went away in the meantime is no reason to stop.
    with contextlib.suppress(OSError):
        os.write(int(named), WORD)
        os.close(int(named))
