"""The crash test: daemon, supervisor or guard is killed at random moments of a running loop.

Every kill that meets the daemon is followed by a new one that resumes; the others are the running
daemon's to deal with.  After the last kill one more daemon runs to its end, and then it is counted.
"""

from __future__ import annotations

import random
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from flywheel.selftest import census
from flywheel.selftest.account import Account, account
from flywheel.selftest.census import Living
from flywheel.selftest.scene import Scene

VICTIMS = ("daemon", "daemon", "supervisor", "guard")
BUDGET_RUNS = 2
LOAD_S = 0.3
# A supervisor lives for most of the loop's life, but not while the next run is being planned.
APPEAR_S = 1.5


@dataclass(frozen=True, slots=True)
class Crash:
    """What was killed, when, and what came of it."""

    kills: int
    seed: int
    by_victim: dict[str, int]
    moments_s: tuple[float, ...]
    daemons: int
    life_s: float
    seconds: float
    account: Account


@dataclass(slots=True)
class _Fire:
    """The state of one crash test."""

    scene: Scene
    dice: random.Random
    life_s: float
    child: subprocess.Popen[bytes] | None = None
    began_s: float = 0.0
    daemons: int = 0
    killed: Counter[str] = field(default_factory=Counter)
    moments_s: list[float] = field(default_factory=list)
    excused: set[str] = field(default_factory=set)

    def start(self) -> subprocess.Popen[bytes]:
        """A daemon, new unless the last one still lives."""
        if self.child is None or self.child.poll() is not None:
            self.child, self.began_s = _daemon(self.scene), time.monotonic()
            self.daemons += 1
        return self.child

    def shoot(self) -> bool:
        """One kill at a random moment; False when the victim was not there."""
        child, role = self.start(), self.dice.choice(VICTIMS)
        time.sleep(self.dice.uniform(0.0, self.life_s))
        target = self._find(role)
        if target is None or not census.kill(target.identity):
            return False
        self.moments_s.append(round(time.monotonic() - self.began_s, 3))
        self.killed[role] += 1
        if role == "daemon":
            child.wait()
        else:
            self.excused.add(Path(target.argument).name)
        return True

    def _find(self, role: str) -> Living | None:
        deadline = time.monotonic() + APPEAR_S
        while True:
            for one in census.living(self.scene.token):
                if one.role == role:
                    return one
            # A daemon that came to its end is no victim; the next one is.
            if role == "daemon" or time.monotonic() >= deadline:
                return None
            time.sleep(0.02)


def _daemon(scene: Scene, budget_runs: int = BUDGET_RUNS) -> subprocess.Popen[bytes]:
    return scene.process("--load", str(LOAD_S), budget_runs=budget_runs, kind="long")


def crash(
    kills: int, seed: int = 1, *, tell: Callable[[int], None] = lambda _: None
) -> Crash:
    """Kill so many times; ``tell`` hears of each."""
    began_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="flywheel-crash-") as folder,
        Scene(Path(folder)) as scene,
    ):
        calm_s = time.monotonic()
        _daemon(scene).wait()
        fire = _Fire(scene, random.Random(seed), time.monotonic() - calm_s)
        done = 0
        while done < kills:
            if fire.shoot():
                done += 1
                tell(done)
        if fire.child is not None:
            fire.child.wait()
        last = _daemon(scene, 1)
        status = last.wait()
        found = account(scene, fire.excused)
        if status:
            said = scene.root.joinpath("daemon.log").read_text(errors="replace").splitlines()[-1:]
            raise RuntimeError(f"the last daemon left with {status}: {' '.join(said)}")
        return Crash(
            kills, seed, dict(fire.killed), tuple(fire.moments_s), fire.daemons + 2,
            round(fire.life_s, 3), round(time.monotonic() - began_s, 1), found,
        )  # fmt: skip
