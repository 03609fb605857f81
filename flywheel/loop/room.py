"""Waits until the box has room for a run: memory, disk and a device that nobody else uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flywheel.box.admission import Entrance
from flywheel.box.clock import Clock
from flywheel.ledger import evidence
from flywheel.ledger.store import Ledger
from flywheel.loop.order import Order, Session
from flywheel.loop.wishes import Wish, Wishes

LOOK_AGAIN_S = 2.0


class Room:
    """Asks the box before every run, and remembers for the run what the box was like."""

    def __init__(
        self,
        order: Order,
        session: Session,
        wishes: Wishes,
        clock: Clock,
        *,
        ledger: Ledger,
        tell: Callable[[str], None],
    ) -> None:
        self._entrance = Entrance(order.ledger.parent, order.checkpoint, now_s=clock.monotonic_s)
        self._ledger, self._checkpoint = ledger, str(order.checkpoint)
        self._session = session
        self._wishes = wishes
        self._tell = tell

    def wait(self) -> Wish | None:
        """Wait for room, as long as that is sensible; each new reason to wait is told once."""
        with self._ledger.reading() as connection:
            peak_bytes = evidence.peak_bytes_of(connection, self._checkpoint)
        told = ""
        while True:
            admission = self._entrance.look(peak_bytes)
            if admission.admitted:
                return None
            if admission.code != told:
                self._tell(f"waiting: {admission.reason}")
                told = admission.code
            first_run = self._session.runs == 0
            if not admission.waits(first_run=first_run, waited_s=self._entrance.waited_s):
                self._session.failed = True
                return Wish("done", admission.reason, False)
            if (wish := self._wishes.wait(LOOK_AGAIN_S)) is not None:
                return wish

    def enter(self) -> dict[str, Any]:
        """A run starts: what the box was like, as JSON for its evidence."""
        return self._entrance.enter()
