"""Wires a night into a process: locks, signals, the beating status file, and the way out.

APScheduler only ticks: the status file every few seconds, so that ``flywheel status`` and a person
can tell a working daemon from a wedged one.  The loop itself is ``night``'s.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC
from pathlib import Path
from types import FrameType
from typing import Any

from apscheduler.schedulers import background

from flywheel import identity, stop
from flywheel.attend import Wishes
from flywheel.clock import Clock, utc_text
from flywheel.display import STYLES, Display
from flywheel.errors import Refused
from flywheel.files import dump, read_json, write_atomic
from flywheel.lease import Lease, daemon_path
from flywheel.ledger.opening import open_for_writing
from flywheel.lever import Lever
from flywheel.night import Night
from flywheel.order import Order, Session

BEAT_S = 5.0


def status_path(ledger: Path) -> Path:
    """The status file of a ledger's daemon."""
    return ledger.with_name(ledger.name + ".daemon.json")


def run(
    order: Order,
    levers: Sequence[Lever],
    *,
    clock: Clock,
    display: Display,
) -> Session:
    """One session: refused when another daemon has the ledger or a STOP file lies there.

    Raises Refused (or LeaseBusy) without having changed anything.
    """
    with Lease.acquire(daemon_path(order.ledger), "flywheel run"):
        stop.clear(order.ledger)
        asked = stop.requested(order.ledger)
        if asked is not None:
            raise Refused(f"{asked.reason}; remove it to run.")
        deadline_s = None if order.budget_s is None else clock.monotonic_s() + order.budget_s
        wishes = Wishes(order.ledger, clock, deadline_s=deadline_s)
        opening = open_for_writing(order.ledger, now_utc=utc_text())
        ledger = opening.ledger
        for warning in opening.warnings:
            display.say(warning, STYLES["void"])
        try:
            night = Night(order, ledger, levers, clock=clock, display=display, wishes=wishes)
            with _signals(wishes, display), _beating(night):
                return night.run()
        finally:
            ledger.close()
            stop.clear(order.ledger)


@contextmanager
def _signals(wishes: Wishes, display: Display) -> Iterator[None]:
    """First Ctrl-C or TERM: end the run and finish; second: leave at once.  HUP: go on."""

    def on_signal(signum: int, _frame: FrameType | None) -> None:
        name = "Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name
        if wishes.interrupted is not None:
            raise KeyboardInterrupt
        wishes.interrupt(name)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        signum: signal.signal(signum, handler)
        for signum, handler in (
            (signal.SIGINT, on_signal),
            (signal.SIGTERM, on_signal),
            (signal.SIGHUP, signal.SIG_IGN),
        )
    }
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@contextmanager
def _beating(night: Night) -> Iterator[None]:
    """Keep the status file fresh while the night runs."""
    path = status_path(night.order.ledger)

    def beat() -> None:
        write_atomic(path, dump(_status(night)))

    # Ticks only: jobs live in memory, in UTC, and a missed tick is dropped, never replayed.
    kind: Any = background.BackgroundScheduler
    scheduler = kind(timezone=UTC)
    scheduler.add_job(
        beat, "interval", seconds=BEAT_S, max_instances=1, coalesce=True, misfire_grace_time=None
    )
    beat()
    scheduler.start()
    try:
        yield
    finally:
        scheduler.shutdown(wait=True)
        beat()


def _status(night: Night) -> dict[str, Any]:
    session = night.session
    return {
        "daemon": identity.current().to_json(),
        "beat_utc": utc_text(),
        "doing": night.doing,
        "run": night.run_id,
        "runs": session.runs,
        "ok": session.ok,
        "started_utc": session.started_utc,
        "reason": session.reason or None,
        "time_left_s": night.wishes.left_s(),
    }


def status(ledger: Path) -> dict[str, Any]:
    """The status file, and whether the daemon that wrote it still lives."""
    body = read_json(status_path(ledger)) or {}
    daemon = identity.Identity.from_json(body.get("daemon"))
    return {**body, "alive": identity.is_alive(daemon)}
