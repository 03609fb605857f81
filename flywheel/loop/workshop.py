"""What everybody who works for one session works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flywheel.box.clock import Clock
from flywheel.box.lease import Lease
from flywheel.display.panel import Display
from flywheel.ledger.store import Ledger
from flywheel.loop.order import Order
from flywheel.loop.wishes import Wishes


@dataclass(frozen=True, slots=True)
class Workshop:
    """`lease` gives the device that is held; `do` notes what is being done, and in which run."""

    order: Order
    ledger: Ledger
    clock: Clock
    display: Display
    wishes: Wishes
    lease: Callable[[], Lease | None]
    do: Callable[[str, str | None], None]
