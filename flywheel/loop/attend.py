"""Waits for one run to end, while listening for everything that may end the wait sooner."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flywheel.box import identity, lease
from flywheel.box.surroundings import Surroundings
from flywheel.display.progress import Follower, Progress
from flywheel.loop.wishes import Wish, Wishes
from flywheel.run import launch
from flywheel.run.manifest import Manifest
from flywheel.run.stopwatch import Look, Stopwatch
from flywheel.run.supervise import LOG_FILE

POLL_S = 0.5
# A supervisor that has not claimed its run within this time has died on the way.
CLAIM_S = 15.0
# A supervisor enforces its run's time limit; when it is this late, it is itself what hangs.
OVERDUE_S = 60.0
# How long a run that is about to finish is waited for once somebody asked to stop.
PATIENCE_S = 1.0

__all__ = ["Attended", "Wish", "Wishes", "attend"]


@dataclass(frozen=True, slots=True)
class Attended:
    """How the wait ended.  ``state`` is None when the run was left to its supervisor.

    ``contamination`` is what makes the numbers worthless, under the code ``contaminated_as``;
    ``surroundings`` is what the box was like meanwhile, for the run's evidence; ``looks`` are the
    lengths of its log by this process's clock.
    """

    state: launch.RunState | None
    wish: Wish | None = None
    contamination: str | None = None
    contaminated_as: str = ""
    surroundings: dict[str, Any] = field(default_factory=dict)
    looks: tuple[Look, ...] = ()


def attend(
    run_dir: Path,
    manifest: Manifest,
    wishes: Wishes,
    *,
    child: subprocess.Popen[bytes] | None = None,
    show: Callable[[Progress], None] = lambda _: None,
    around: Surroundings | None = None,
    patience_s: float = PATIENCE_S,
    overtime_s: float = 60.0,
) -> Attended:
    """Wait for a run, started by this process (``child``) or adopted.

    A wish to end the run ends it.  A plain STOP waits ``patience_s`` for a run that is about to
    finish, then leaves it to its supervisor; the next daemon finds it.
    """
    follower = Follower(run_dir / LOG_FILE, manifest.nonce)
    watch = Stopwatch(run_dir / LOG_FILE)
    around = around or Surroundings()
    leave_at: float | None = None
    began = time.monotonic()
    overdue_at = began + manifest.timeout_s + 2 * manifest.grace_s + OVERDUE_S
    while True:
        watch.look()
        state = launch.look(run_dir)
        if state.phase in ("left", "lost"):
            if state.phase == "lost":
                launch.bury(state, manifest.grace_s)
            return Attended(
                state, None, around.contamination, around.code, around.evidence(),
                tuple(watch.looks),
            )
        now = time.monotonic()
        wish = wishes.heard(overtime_s=overtime_s)
        ending = wish is not None and wish.end_run
        if (
            state.phase == "unclaimed"
            and (ending or now >= began + CLAIM_S or not _on_its_way(run_dir, child))
            and (done := _give_up(run_dir, child, wish if ending else None)) is not None
        ):
            return done
        if ending and state.phase == "running":
            return _end(run_dir, manifest, wish)
        if wish is not None and not ending:
            leave_at = now + patience_s if leave_at is None else leave_at
            if now >= leave_at:
                return Attended(None, wish)
        if state.phase == "running" and now >= overdue_at:
            overdue_at = now + OVERDUE_S
            _unhang(state)
        around.look(state)
        show(follower.look())
        _nap(child)


def _on_its_way(run_dir: Path, child: subprocess.Popen[bytes] | None) -> bool:
    """Whether a supervisor may yet claim the run: ours, or the one a dead daemon started.

    The device's lock says so of the latter: a supervisor inherits it, and whoever else takes it
    writes another run into it.
    """
    if child is not None:
        return child.poll() is None
    held = lease.holder(lease.device_path())
    return (
        held is not None
        and held.run_dir is not None
        and Path(held.run_dir).resolve() == run_dir.resolve()
    )


def _unseen(run_dir: Path, child: subprocess.Popen[bytes] | None) -> bool:
    """Whether our supervisor lives although the run's directory was deleted under it."""
    return child is not None and child.poll() is None and not run_dir.is_dir()


def _end(run_dir: Path, manifest: Manifest, wish: Wish | None) -> Attended:
    """End a run; one whose supervisor does not get to its word stays open for the next daemon."""
    state = launch.end(run_dir, manifest.grace_s)
    return Attended(None if state.phase == "running" else state, wish)


def _give_up(
    run_dir: Path, child: subprocess.Popen[bytes] | None, wish: Wish | None
) -> Attended | None:
    """Take an unclaimed run away from its supervisor; None when one may have it after all."""
    if _unseen(run_dir, child):
        if wish is None or child is None:
            return None
        child.terminate()
        return Attended(None, wish)
    try:
        taken = launch.disown(run_dir)
    except OSError:
        # Nobody can claim it on such a disk either; with a wish it stays for the next daemon.
        return None if wish is None else Attended(None, wish)
    return Attended(launch.look(run_dir), wish) if taken else None


def _unhang(state: launch.RunState) -> None:
    """Kill a supervisor that slept through its run's time limit; its engine is buried next."""
    if state.supervisor is not None:
        identity.send(state.supervisor, signal.SIGKILL)


def _nap(child: subprocess.Popen[bytes] | None) -> None:
    """Half a second, or less when our own supervisor ends."""
    if child is None or child.poll() is not None:
        time.sleep(POLL_S / 5)
        return
    try:
        child.wait(POLL_S)
    except subprocess.TimeoutExpired:
        return
