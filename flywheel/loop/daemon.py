"""Wires a night into a process: locks, signals, the beating status file, and the way out.

The loop itself is ``night``'s.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from flywheel.box import identity
from flywheel.box.clock import Clock, utc_text
from flywheel.box.identity import Identity
from flywheel.box.lease import Lease, daemon_path
from flywheel.display.panel import STYLES, Display
from flywheel.errors import LeaseBusy, Refused
from flywheel.ledger import place
from flywheel.ledger.opening import open_for_writing
from flywheel.loop import given, glance, ready, stop
from flywheel.loop.beat import beating
from flywheel.loop.night import Night
from flywheel.loop.order import Order, Session
from flywheel.loop.supply import Declared
from flywheel.loop.wishes import Wish, Wishes


def run(
    order: Order,
    declared: Declared,
    *,
    clock: Clock,
    display: Display,
) -> Session:
    """One session: refused when another daemon has the ledger or a STOP file lies there.

    `declared` reads the levers; it is asked again before every choice.

    Raises Refused (or LeaseBusy) without having changed anything.
    """
    # Before it is locked: nothing is left beside a ledger that cannot be kept there, nor beside
    # a file that is none.
    place.check(order.ledger)
    glance.history(order.ledger)
    with Lease.acquire(daemon_path(order.ledger), "flywheel run"):
        _alone(order)
        stop.clear_stale(order.ledger)
        asked = stop.requested(order.ledger)
        if asked is not None:
            remedy = "; remove it to run" if asked.by_hand else ""
            raise Refused(f"{asked.reason}{remedy}.")
        deadline_s = None if order.budget_s is None else clock.monotonic_s() + order.budget_s
        wishes = Wishes(order.ledger, clock, deadline_s=deadline_s)
        try:
            with _signals(wishes):
                return _night(order, declared, clock, display, wishes)
        finally:
            with contextlib.suppress(OSError):
                stop.clear(order.ledger)


def _night(
    order: Order, declared: Declared, clock: Clock, display: Display, wishes: Wishes
) -> Session:
    # To prove and to copy a large ledger takes its time.
    opening = wishes.during(lambda: open_for_writing(order.ledger, now_utc=utc_text()))
    if isinstance(opening, Wish):
        return Session(utc_text(), reason=opening.reason, stopped=True)
    for warning in opening.warnings:
        display.say(warning, STYLES["void"])
    try:
        order = given.kept(order)
        night = Night(
            order, opening.ledger, declared, clock=clock, display=display, wishes=wishes,
            ready=ready.tell,
        )  # fmt: skip
        with beating(night) as night.beat:
            return night.run()
    finally:
        opening.ledger.close()


def _alone(order: Order) -> None:
    """Refuse beside a daemon that lives although its lock can be had: its lock file was deleted."""
    told = glance.daemon(order.ledger)
    other = Identity.from_json(told.get("daemon"))
    if told["alive"] and not told.get("ended") and other not in (None, identity.current()):
        assert other is not None
        raise LeaseBusy(
            f"process {other.pid} (flywheel run, since {told.get('started_utc')}) works on this "
            "ledger, although its lock file is gone."
        )


@contextmanager
def _signals(wishes: Wishes) -> Iterator[None]:
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
