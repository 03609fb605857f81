"""Profiles the incumbent in a process of its own, and listens for a wish to stop meanwhile.

A profile promotes nothing, so it is no run: it is kept with the phase that asked for it. The
process inherits the device's lease, and locks a file of its own in the place of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flywheel import synthetic
from flywheel.best import engine_part
from flywheel.box.clock import Clock
from flywheel.errors import RecordError
from flywheel.files import dump, write_atomic
from flywheel.loop.order import Order
from flywheel.loop.wishes import Wish, Wishes

FOLDER = "profiles"
PROGRAM_LOG, DOCUMENT, CONFIG = "profile.log", "profile.json", "config.json"
LOOK_AGAIN_S = 0.25
GRACE_S = 1.0


def take(
    order: Order,
    config: Mapping[str, Any],
    rows: int,
    *,
    lease_fds: Sequence[int],
    wishes: Wishes,
    clock: Clock,
) -> Mapping[str, Any] | Wish:
    """The profile as `engine.profile --json` prints it, or the wish that it had to yield to.

    Raises RecordError, in one sentence, where there is none to be had.
    """
    folder = order.ledger.parent / FOLDER / secrets.token_hex(4)
    try:
        folder.mkdir(parents=True)
        # A step is timed without drafts: whose head it is makes no difference.
        write_atomic(folder / CONFIG, dump(engine_part(config)))
        child = _start(order, folder, rows, lease_fds)
    except OSError as error:
        raise RecordError(f"the profile could not be begun: {error}") from error
    wish = _attend(child, order.timeout_s, wishes, clock)
    if wish is not None:
        return wish
    if child.returncode != 0:
        raise RecordError(f"it left with status {child.returncode}: {_last_line(folder)}")
    try:
        document: Any = json.loads((folder / DOCUMENT).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"it printed no JSON document: {error}") from error
    if not isinstance(document, dict):
        raise RecordError("it printed no JSON object")
    return document


def _start(
    order: Order, folder: Path, rows: int, lease_fds: Sequence[int]
) -> subprocess.Popen[bytes]:
    name = synthetic.name_of(order.checkpoint)
    model = ("--synthetic", name) if name else ("--checkpoint", str(order.checkpoint))
    argv = (*order.profile, "--json", "--config", str(folder / CONFIG), "--rows", str(rows), *model)
    with (folder / DOCUMENT).open("wb") as out, (folder / PROGRAM_LOG).open("wb") as log:
        return subprocess.Popen(
            argv,
            cwd=order.cwd,
            env={**os.environ, "FLYWHEEL_LEASE": str(folder.resolve() / "device.lock")},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=log,
            start_new_session=True,
            pass_fds=tuple(lease_fds),
        )


def _attend(
    child: subprocess.Popen[bytes], timeout_s: float, wishes: Wishes, clock: Clock
) -> Wish | None:
    """Wait for its end; it is ended when somebody wants the loop to stop, or it takes too long."""
    until_s = clock.monotonic_s() + timeout_s
    try:
        while child.poll() is None:
            if (wish := wishes.wait(LOOK_AGAIN_S)) is not None:
                return wish
            if clock.monotonic_s() > until_s:
                raise RecordError(f"it took longer than {timeout_s:.0f} s")
        return None
    finally:
        _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End it and whatever it started; its group is its own, and has its pid until it is reaped."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if child.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_S)


def _last_line(folder: Path) -> str:
    try:
        lines = (folder / PROGRAM_LOG).read_text(errors="replace").split("\n")
    except OSError:
        lines = []
    said = [line.strip() for line in lines if line.strip()]
    return said[-1][:300] if said else "it said nothing"
