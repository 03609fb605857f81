"""Waits for one run to end, while listening for everything that may end the wait sooner."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flywheel import host, identity, launch, stop
from flywheel.clock import Clock
from flywheel.manifest import Manifest
from flywheel.progress import Follower, Progress
from flywheel.supervise import LOG_FILE

POLL_S = 0.5
DEVICE_POLL_S = 15.0


@dataclass(frozen=True, slots=True)
class Wish:
    """Why the loop must not go on: ``end_run`` says that the run in progress must end too.

    ``code`` is what a run ended for it is called; ``reason`` is shown.
    """

    code: str
    reason: str
    end_run: bool


class Wishes:
    """Collects the reasons to stop: a signal, the STOP file, the end of the time budget."""

    def __init__(self, ledger: Path, clock: Clock, *, deadline_s: float | None = None) -> None:
        self._ledger = ledger
        self._clock = clock
        self.deadline_s = deadline_s
        self.interrupted: str | None = None

    def interrupt(self, name: str) -> None:
        """Note a signal; safe in a signal handler."""
        self.interrupted = name

    def heard(self, *, overtime_s: float = 0.0) -> Wish | None:
        """The most urgent wish now, if there is one."""
        if self.interrupted is not None:
            return Wish("interrupted", f"{self.interrupted}", True)
        asked = stop.requested(self._ledger)
        if asked is not None:
            return Wish("interrupted", asked.reason, asked.now)
        left_s = self.left_s()
        if left_s is not None and left_s + overtime_s <= 0:
            return Wish("budget_spent", "the time budget is spent", True)
        return None

    def left_s(self) -> float | None:
        """Seconds of the time budget that are left; None without one."""
        if self.deadline_s is None:
            return None
        return self.deadline_s - self._clock.monotonic_s()


@dataclass(frozen=True, slots=True)
class Attended:
    """How the wait ended.  ``state`` is None when the run was left to its supervisor."""

    state: launch.RunState | None
    wish: Wish | None = None
    contamination: str | None = None


def attend(
    run_dir: Path,
    manifest: Manifest,
    wishes: Wishes,
    *,
    child: subprocess.Popen[bytes] | None = None,
    show: Callable[[Progress], None] = lambda _: None,
    watch_device: bool = False,
    patience_s: float = 5.0,
    overtime_s: float = 60.0,
) -> Attended:
    """Wait for a run, started by this process (``child``) or adopted.

    A wish to end the run ends it.  A plain STOP waits ``patience_s`` for a run that is about to
    finish, then leaves it to its supervisor; the next daemon finds it.
    """
    follower = Follower(run_dir / LOG_FILE, manifest.nonce)
    contamination: str | None = None
    leave_at: float | None = None
    # A supervisor that has not claimed its run within this time has died on the way.
    unclaimed_until = time.monotonic() + 15.0
    device_at = time.monotonic() + DEVICE_POLL_S
    while True:
        state = launch.look(run_dir)
        if state.phase in ("left", "lost"):
            _bury(state, manifest)
            return Attended(state, contamination=contamination)
        now = time.monotonic()
        if state.phase == "unclaimed" and (
            (child is not None and child.poll() is not None)
            or (child is None or now >= unclaimed_until)
        ) and launch.disown(run_dir):
            return Attended(launch.look(run_dir))
        wish = wishes.heard(overtime_s=overtime_s)
        if wish is not None and wish.end_run and state.phase == "running":
            return Attended(launch.end(run_dir, manifest.grace_s), wish)
        if wish is not None and not wish.end_run:
            leave_at = now + patience_s if leave_at is None else leave_at
            if now >= leave_at:
                return Attended(None, wish)
        if watch_device and contamination is None and now >= device_at:
            device_at = now + DEVICE_POLL_S
            contamination = _foreign(state)
        show(follower.look())
        _nap(child)


def _nap(child: subprocess.Popen[bytes] | None) -> None:
    """Half a second, or less when our own supervisor ends."""
    if child is None or child.poll() is not None:
        time.sleep(POLL_S / 5)
        return
    try:
        child.wait(POLL_S)
    except subprocess.TimeoutExpired:
        return


def _bury(state: launch.RunState, manifest: Manifest) -> None:
    """End what a lost supervisor's engine left running."""
    if state.phase == "lost" and state.engine is not None:
        session = None if state.supervisor is None else state.supervisor.pid
        identity.end_group(state.engine, manifest.grace_s, session)


def _foreign(state: launch.RunState) -> str | None:
    """Who else is on the device besides the run's own group."""
    if state.engine is None:
        return None
    own = identity.group_members(state.engine)
    look = host.Host(None, None, None, None, None, host.gpus())
    return host.refuses(look, own_pids=own)
