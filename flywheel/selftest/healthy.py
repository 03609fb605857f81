"""Healthy runs under mild disturbance: every one of them must count."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from flywheel.selftest import census
from flywheel.selftest.account import Account, account
from flywheel.selftest.scene import Scene
from flywheel.selftest.verdict import rows

_BURNER = "import os, time\nos.nice(19)\nwhile True:\n    sum(range(20000)); time.sleep(0.005)"
LONGEST_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class Healthy:
    """``refused`` lists the runs that were healthy and did not count: outcome, code, detail."""

    runs: int
    accepted: int
    refused: tuple[str, ...]
    pauses: int
    seconds: float
    account: Account

    @property
    def good(self) -> bool:
        """Every run counts."""
        return not self.refused and self.account.good


def healthy(
    runs: int, seed: int = 1, *, tell: Callable[[int], None] = lambda _: None
) -> Healthy:
    """So many runs, while others read, write, compute, and stop the engine for an instant."""
    began_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="flywheel-healthy-") as folder,
        Scene(Path(folder)) as scene,
        _burning(),
    ):
        child = scene.process(budget_runs=runs, kind="long")
        dice, pauses = random.Random(seed), 0
        while child.poll() is None:
            pauses += _disturb(scene, dice)
            tell(_ended(scene))
            time.sleep(0.1)
        with rows(scene.ledger) as connection:
            ends = connection.execute("SELECT run_id, outcome, code, detail FROM run_end")
            found = ends.fetchall()
        refused = tuple(" ".join(map(str, row)) for row in found if row[1] != "ok")
        return Healthy(
            len(found), len(found) - len(refused), refused, pauses,
            round(time.monotonic() - began_s, 1), account(scene),
        )  # fmt: skip


@contextlib.contextmanager
def _burning() -> Iterator[None]:
    """Somebody else computes, politely."""
    environment = {**os.environ, census.MARK: "burner"}
    child = subprocess.Popen([sys.executable, "-S", "-c", _BURNER], env=environment)
    try:
        yield
    finally:
        child.kill()
        child.wait()


def _disturb(scene: Scene, dice: random.Random) -> int:
    """One small thing that happens on any box; 1 when it was a pause of the engine."""
    what = dice.choice(("read", "write", "tail", "pause"))
    if what == "write":
        (scene.root / "elsewhere").write_bytes(os.urandom(1 << 20))
    elif what == "read":
        _ended(scene)
    elif what == "tail":
        for log in scene.runs.glob("*/run.log"):
            log.read_bytes()
    else:
        return _pause(scene, dice.uniform(0.0, LONGEST_PAUSE_S))
    return 0


def _pause(scene: Scene, seconds: float) -> int:
    engine = next((p for p in census.living(scene.token) if p.role == "engine"), None)
    if engine is None or not census.kill(engine.identity, signal.SIGSTOP):
        return 0
    threading.Event().wait(seconds)
    census.kill(engine.identity, signal.SIGCONT)
    return 1


def _ended(scene: Scene) -> int:
    """How many runs have ended, read from the file while it is being written."""
    with contextlib.suppress(sqlite3.Error), rows(scene.ledger) as connection:
        return int(connection.execute("SELECT count(*) FROM run_end").fetchone()[0])
    return 0
