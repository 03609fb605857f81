"""Which processes belong to one experiment, told without the code that is under test.

Every process that an experiment starts inherits a mark in its environment, and neither a new
group, a new session nor a new parent takes that away.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from flywheel.box import identity
from flywheel.box.identity import Identity

MARK = "FLYWHEEL_SELFTEST"
ROLES = {
    "flywheel.run.supervise": "supervisor",
    "flywheel.guard": "guard",
    "flywheel.selftest.engine": "engine",
    "flywheel.selftest.loop": "daemon",
}


@dataclass(frozen=True, slots=True)
class Living:
    """A live process of an experiment: what it was started as, and with which last argument."""

    identity: Identity
    role: str
    argument: str


def living(token: str) -> tuple[Living, ...]:
    """Every live process that carries the mark, but this one."""
    wanted = f"{MARK}={token}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            environment = Path(f"/proc/{entry}/environ").read_bytes()
            line = Path(f"/proc/{entry}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if wanted not in environment.split(b"\0"):
            continue
        who, words = identity.of(int(entry)), line.rstrip("\0").split("\0")
        if who is not None:
            found.append(Living(who, _role(words), words[-1]))
    return tuple(found)


def _role(words: list[str]) -> str:
    for flag, module in zip(words, words[1:], strict=False):
        if flag == "-m" and module in ROLES:
            return ROLES[module]
    return "other"


def gone(token: str, patience_s: float = 3.0) -> tuple[Living, ...]:
    """Who is still there after ``patience_s``; empty as soon as nobody is."""
    deadline = time.monotonic() + patience_s
    while left := living(token):
        if time.monotonic() >= deadline:
            return left
        time.sleep(0.02)
    return ()


def kill(process: Identity, number: int = signal.SIGKILL) -> bool:
    """Signal exactly this process; False when it is gone."""
    if not identity.is_alive(process):
        return False
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return False
    return True


def sweep(token: str) -> None:
    """End whatever an experiment left, so that it disturbs no other."""
    for _ in range(50):
        left = living(token)
        if not left:
            return
        for one in left:
            kill(one.identity)
        time.sleep(0.02)
