"""Clocks that step: the engine's, the loop's; and a box that was asleep."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from functools import partial

from flywheel.box.clock import SystemClock
from flywheel.selftest.fault import Fault
from flywheel.selftest.faults.script import scripted_fault
from flywheel.selftest.scene import Scene

_fault = partial(scripted_fault, "clock")


class SteppingClock(SystemClock):
    """Wall time that can be stepped; what is monotonic stays so."""

    def __init__(self) -> None:
        self.step = timedelta()

    def now(self) -> datetime:
        """Wall time, as stepped."""
        return super().now() + self.step


def _wall_clock(step: timedelta, name: str, said: str) -> Fault:
    def inject(scene: Scene) -> None:
        clock = SteppingClock()

        def jump() -> None:
            scene.held()
            clock.step = step
            time.sleep(0.05)
            scene.release()

        scene.loop("--hold", "middle", during=jump, clock=clock, budget_s=3600.0)

    return Fault(name, "clock", said, "ok", ("",), inject)


FAULTS = (
    _fault("clock_back", "the engine's clock steps back two seconds", "void", "clock_backwards"),
    _fault("clock_forward", "the engine's clock steps forward an hour", "void", "heartbeat_gap"),
    _fault("heartbeat_gap", "no heartbeat for two minutes", "void", "heartbeat_gap"),
    _wall_clock(timedelta(days=-400), "wall_clock_back",
                "the wall clock steps back 400 days in mid-run"),
    _wall_clock(timedelta(days=400), "wall_clock_forward",
                "the wall clock steps forward 400 days in mid-run"),
)  # fmt: skip
