"""How the scripted engine is started in the place of the real one."""

from __future__ import annotations

import sys


def scripted(*options: str) -> tuple[str, ...]:
    """The command prefix; the standard library is all it needs, so site packages are skipped."""
    return (sys.executable, "-S", "-m", "flywheel.selftest.engine", *options)
