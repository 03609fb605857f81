"""The status file: what the daemon is doing, beside the ledger, for whoever wants to know.

It is written by ticks and read by `flywheel status` and `flywheel attach`.  It decides nothing: a
file that cannot be written, or is gone, costs a look at the loop and not the loop.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC
from typing import Any

from apscheduler.schedulers import background

from flywheel.box import identity
from flywheel.box.clock import utc_text
from flywheel.files import dump, write_atomic
from flywheel.loop.glance import status_path
from flywheel.loop.night import Night

BEAT_S = 2.0


@contextmanager
def beating(night: Night) -> Iterator[Callable[..., None]]:
    """Keep the status file fresh while the night runs; yields a beat to do out of turn."""
    path = status_path(night.order.ledger)
    failed: list[str] = []
    turn = threading.Lock()

    def beat(**more: object) -> None:
        with turn:
            try:
                write_atomic(path, dump({**body(night), **more}), durable=False)
                failed.clear()
            except OSError as error:
                said = f"{path.name} could not be written: {error.strerror}"
                if not failed:
                    failed.append(said)
                    night.display.say(said, "magenta")

    # A tick that comes late on a busy box is no news.
    logging.getLogger("apscheduler").setLevel(logging.CRITICAL)
    # Ticks only: jobs live in memory, in UTC, and a missed tick is dropped, never replayed.
    kind: Any = background.BackgroundScheduler
    scheduler = kind(timezone=UTC)
    scheduler.add_job(
        beat, "interval", seconds=BEAT_S, max_instances=1, coalesce=True, misfire_grace_time=None
    )
    beat()
    scheduler.start()
    try:
        yield beat
    finally:
        scheduler.shutdown(wait=True)
        beat(ended=True)


def body(night: Night) -> dict[str, Any]:
    """What the status file says now."""
    session, scene = night.session, night.display.scene
    return {
        "daemon": identity.current().to_json(),
        "beat_utc": utc_text(),
        "doing": night.doing,
        "doing_since_utc": night.doing_since_utc,
        "run": night.run_id,
        "runs": session.runs,
        "ok": session.ok,
        "started_utc": session.started_utc,
        "reason": session.reason or None,
        "halted": session.halted,
        "time_left_s": night.wishes.left_s(),
        "budget_runs": night.order.budget_runs,
        "window": None if night.order.window is None else str(night.order.window),
        "scene": asdict(scene),
    }
