"""Waits until the box has room for a run: memory, disk and a device that nobody else uses."""

from __future__ import annotations

from collections.abc import Callable

from flywheel import host
from flywheel.clock import Clock
from flywheel.order import Order, Session
from flywheel.wishes import Wish, Wishes

PATIENCE_S = 1800.0
LOOK_AGAIN_S = 2.0


class Room:
    """Asks the box before every run.  ``watch_device``: there is a device to keep an eye on."""

    def __init__(
        self,
        order: Order,
        session: Session,
        wishes: Wishes,
        clock: Clock,
        *,
        tell: Callable[[str], None],
    ) -> None:
        self._order = order
        self._session = session
        self._wishes = wishes
        self._clock = clock
        self._tell = tell
        self.watch_device = False

    def wait(self) -> Wish | None:
        """Wait for room; give up after half an hour, or at once before the first run."""
        until_s = self._clock.monotonic_s() + PATIENCE_S
        told = False
        while True:
            look = host.probe(self._order.ledger.parent)
            self.watch_device = bool(look.gpus)
            refusal = host.refuses(look)
            if refusal is None:
                return None
            if not told:
                self._tell(f"waiting: {refusal}")
                told = True
            if self._clock.monotonic_s() >= until_s or self._session.runs == 0:
                self._session.failed = True
                return Wish("done", refusal, False)
            if (wish := self._wishes.wait(LOOK_AGAIN_S)) is not None:
                return wish
