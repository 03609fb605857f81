"""Faults of what is served: found in the server's log, and entered in the ledger.

The engine heals its own faults and says so in one line of its log. The host reads those lines as
they come, so a fault at noon is on record before the night, whoever was told of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from flywheel.box.clock import utc_text
from flywheel.errors import FlywheelError
from flywheel.ledger import faults
from flywheel.ledger.faults import ENGINE, SERVER, Fault
from flywheel.ledger.store import Ledger
from flywheel.serve.chosen import Chosen

_LINE = re.compile(
    r"ERROR engine\.server: Engine fault \d+ ended (\d+) answers?: (.*);"
    r" the engine is loaded again\."
)
_MOST_BYTES = 1 << 20  # of a log, at one look


class FaultLog:
    """The faults that a server's log tells of, from a place in it on."""

    def __init__(self, log: Path, start_bytes: int) -> None:
        self._log = log
        self._at_bytes = start_bytes

    def news(self) -> tuple[Fault, ...]:
        """Those since the last look; a line that is not whole yet waits for the next one."""
        try:
            if self._log.stat().st_size <= self._at_bytes:
                return ()
            with self._log.open("rb") as stream:
                stream.seek(self._at_bytes)
                text = stream.read(_MOST_BYTES)
        except OSError:
            return ()
        whole = text[: text.rfind(b"\n") + 1] or (text if len(text) == _MOST_BYTES else b"")
        self._at_bytes += len(whole)
        return tuple(found(whole.decode("utf-8", "replace")))


def found(text: str) -> list[Fault]:
    """The faults of the engine in a part of a server's log. Pure but for the time of the look."""
    matches = [m for line in text.split("\n") if (m := _LINE.fullmatch(line.rstrip("\r")))]
    return [Fault(ENGINE, m[2], int(m[1]), utc_text()) for m in matches]


class FaultKeeper:
    """Enters faults in a ledger; what it will not take now is tried again with the next one."""

    def __init__(
        self, ledger: Path, say: Callable[[str], None], may_wait: Callable[[], bool]
    ) -> None:
        self._ledger, self._say, self._may_wait = ledger, say, may_wait
        self._waiting: list[tuple[Fault, Chosen]] = []

    def keep(self, noticed: tuple[Fault, ...], served: Chosen) -> bool:
        """Say and enter faults; whether any is on record now that was not."""
        for fault in noticed:
            self._say(f"{fault.said}.")
        self._waiting += [(fault, served) for fault in noticed]
        return self.settle() if noticed else False

    def settle(self) -> bool:
        """Enter what still waits; whether anything was entered. Without a ledger nothing is."""
        if not self._waiting or not self._ledger.exists():
            return False
        entered = 0
        try:
            ledger = Ledger.open(self._ledger, create=False)
            ledger.may_wait = self._may_wait
            try:
                while self._waiting:
                    fault, served = self._waiting[0]
                    faults.record(ledger, fault, served.decision, served.whole)
                    self._waiting.pop(0)
                    entered += 1
            finally:
                ledger.close()
        except FlywheelError as error:
            self._say(f"a fault is not on record yet: {error}")
        return entered > 0


def of_exit(status: int, last_words: str) -> Fault:
    """The fault of a server that left by itself."""
    how = f"killed by signal {-status}" if status < 0 else f"it left with status {status}"
    return Fault(SERVER, f"{how}{f': {last_words}' if last_words else ''}", 0, utc_text())
