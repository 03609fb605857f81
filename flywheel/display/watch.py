"""`flywheel attach`: the picture that a daemon's own terminal would show, from its status file.

It only reads.  The daemon does not know of it, and a Ctrl-C here ends the watching.
"""

from __future__ import annotations

import select
import time
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import IO, Any

from flywheel.box import lease
from flywheel.box.clock import count
from flywheel.display.panel import Display, Scene
from flywheel.display.progress import Follower, Progress
from flywheel.errors import FlywheelError, Refused
from flywheel.files import read_json
from flywheel.loop import glance

POLL_S = 0.5
# The status file is written as a daemon leaves; its locks may be free a moment earlier.
SETTLE_S = 2.0


def scene_of(body: Mapping[str, Any]) -> Scene:
    """The scene in a status file, with blanks for what it does not say."""
    told = body.get("scene")
    told = told if isinstance(told, dict) else {}
    known = {field.name for field in fields(Scene)} - {"progress", "notes"}
    scene = Scene(**{name: value for name, value in told.items() if name in known})
    notes = told.get("notes")
    return replace(scene, notes=tuple(str(note) for note in notes or ()))


def attach(ledger: Path, display: Display) -> dict[str, Any]:
    """Show a running daemon until it ends; its last status, with its exit words.

    Refused when none runs; FlywheelError when it ended without a word; BrokenPipeError when
    nobody reads what is shown.
    """
    glance.require(ledger)
    if lease.holder(lease.daemon_path(ledger)) is None:
        raise Refused(f"no daemon runs on {ledger}; flywheel run --detach starts one.")
    seen = _Seen()
    with display.open():
        while True:
            gone = lease.holder(lease.daemon_path(ledger)) is None
            body = _last(ledger) if gone else glance.daemon(ledger)
            seen.show(display, ledger, body)
            if gone:
                break
            if _unread(display.console.file):
                raise BrokenPipeError
            time.sleep(POLL_S)
    if not body.get("reason"):
        raise FlywheelError(
            "the daemon is gone and left no word; one that was detached has its last in "
            f"{glance.log_path(ledger)}."
        )
    return body


def _unread(stream: IO[str]) -> bool:
    """Whether the stream is a pipe whose reader has left, as in `flywheel attach | head -1`."""
    try:
        fd = stream.fileno()
    except (OSError, ValueError):
        return False
    poller = select.poll()
    poller.register(fd, 0)
    return any(event & select.POLLERR for _, event in poller.poll(0))


def _last(ledger: Path) -> dict[str, Any]:
    """The status file as its daemon left it."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        body = glance.daemon(ledger)
        if body.get("ended") or time.monotonic() >= deadline:
            return body
        time.sleep(0.1)


class _Seen:
    """What was shown already: lines said, and how far the run's log was read."""

    def __init__(self) -> None:
        self.said: int | None = None
        self.run_id: str | None = None
        self.follower: Follower | None = None

    def show(self, display: Display, ledger: Path, body: Mapping[str, Any]) -> None:
        scene = scene_of(body)
        # What was said before is repeated as far as it is known.
        new = scene.said - (self.said or 0)
        self.said = scene.said
        for note in scene.notes[len(scene.notes) - min(new, len(scene.notes)) :]:
            display.repeat(note)
        shown = {field.name: getattr(scene, field.name) for field in fields(Scene)}
        for own in ("notes", "said", "progress"):
            shown.pop(own)
        display.show(**shown, progress=self._progress(ledger, body.get("run")))

    def _progress(self, ledger: Path, run_id: object) -> Progress:
        """The engine's own last word, read from the run's log."""
        if run_id != self.run_id:
            self.run_id = run_id if isinstance(run_id, str) else None
            self.follower = None
        if self.run_id is not None and self.follower is None:
            run_dir = ledger.parent / "runs" / self.run_id
            nonce = (read_json(run_dir / "manifest.json") or {}).get("nonce")
            if isinstance(nonce, str):
                self.follower = Follower(run_dir / "run.log", nonce)
        return Progress() if self.follower is None else self.follower.look()


def farewell(body: Mapping[str, Any]) -> str:
    """The exit words of a daemon."""
    return f"{count(int(body.get('runs') or 0), 'run')}. Stopped: {body.get('reason')}"
