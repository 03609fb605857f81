"""Every reason to stop, heard at every step; and the only ways in which the loop waits.

A loop that is to stop within two seconds must never sleep, join or read for longer without
listening.  So it waits with ``Wishes.wait`` and does slow work with ``Wishes.during``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from flywheel.box.clock import Clock
from flywheel.loop import stop

_T = TypeVar("_T")
POLL_S = 0.25
# How long slow work may still take once somebody wants the loop to stop.
WORK_PATIENCE_S = 1.0


@dataclass(frozen=True, slots=True)
class Wish:
    """Why the loop must not go on: ``end_run`` says that the run in progress must end too.

    ``code`` is what a run ended for it is called; ``reason`` is shown.
    """

    code: str
    reason: str
    end_run: bool


class Wishes:
    """Collects the reasons to stop: a signal, the STOP file, the end of the time budget."""

    def __init__(self, ledger: Path, clock: Clock, *, deadline_s: float | None = None) -> None:
        self._ledger = ledger
        self._clock = clock
        self.deadline_s = deadline_s
        self.interrupted: str | None = None

    def interrupt(self, name: str) -> None:
        """Note a signal; safe in a signal handler."""
        self.interrupted = name

    def asked(self) -> Wish | None:
        """What a person asked for: a signal or STOP."""
        if self.interrupted is not None:
            return Wish("interrupted", f"{self.interrupted}", True)
        asked = stop.requested(self._ledger)
        return None if asked is None else Wish("interrupted", asked.reason, asked.now)

    def heard(self, *, overtime_s: float = 0.0) -> Wish | None:
        """The most urgent wish now, if there is one."""
        if (wish := self.asked()) is not None:
            return wish
        left_s = self.left_s()
        if left_s is not None and left_s + overtime_s <= 0:
            return Wish("budget_spent", "the time budget is spent", True)
        return None

    def left_s(self) -> float | None:
        """Seconds of the time budget that are left; None without one."""
        if self.deadline_s is None:
            return None
        return self.deadline_s - self._clock.monotonic_s()

    def wait(self, seconds: float) -> Wish | None:
        """Sleep that long, or until there is a wish."""
        until_s = self._clock.monotonic_s() + seconds
        while True:
            if (wish := self.heard()) is not None:
                return wish
            left_s = until_s - self._clock.monotonic_s()
            if left_s <= 0:
                return None
            self._clock.sleep(min(POLL_S, left_s))

    def during(self, work: Callable[[], _T], patience_s: float = WORK_PATIENCE_S) -> _T | Wish:
        """Do slow work that may be abandoned: its result, or the wish that it had to yield to.

        The work must leave nothing behind that a crash at any moment would not leave too.  The
        end of the time budget does not abandon it: what was measured is worth entering.
        """
        done: list[_T] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                done.append(work())
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run, daemon=True, name="slow work")
        thread.start()
        asked_s = None
        while thread.is_alive():
            thread.join(POLL_S)
            if (wish := self.asked()) is None or not thread.is_alive():
                continue
            now_s = self._clock.monotonic_s()
            asked_s = now_s if asked_s is None else asked_s
            if now_s - asked_s >= patience_s:
                return wish
        if failed:
            raise failed[0]
        return done[0]
