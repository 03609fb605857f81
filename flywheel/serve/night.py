"""One night of a host: `flywheel run` as a process of its own, and a sentence for who asks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from flywheel.box.clock import Clock, Window, span_text, utc_text
from flywheel.errors import FlywheelError
from flywheel.loop.glance import log_path
from flywheel.serve import away
from flywheel.serve.address import Address

POLL_S = 0.25
# A run may end this long after its window: it enters what it has measured, and proves it if it can.
OVERTIME_S = 120.0
LEAST_S = 5.0
# From being told to stop: longer than the loop ever takes to end a run and enter it.
PATIENCE_S = 90.0


class Night:
    """`flywheel run` for what is left of a window."""

    def __init__(
        self, ledger: Path, address: Address, window: Window, arguments: tuple[str, ...],
        clock: Clock,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._address = address
        self._window = window
        self._arguments = arguments
        self._clock = clock

    def attend(self, stopped: Callable[[], bool]) -> str:
        """Work until the window shuts, nothing is left to try, or ``stopped``; how it ended."""
        left_s = self._left_s()
        if left_s < LEAST_S:
            return "the window was about to shut: no run was begun."
        began_s = self._clock.monotonic_s()
        with away.answering(self._address, self._left_s, f"{self._window.closes:%H:%M}"):
            child = self._start(left_s)
            self._wait(child, stopped, began_s + left_s + OVERTIME_S)
        spent = span_text(self._clock.monotonic_s() - began_s)
        if child.returncode == 0:
            return f"flywheel run worked for {spent}; its page is in {log_path(self._ledger)}."
        return (
            f"flywheel run ended with status {child.returncode} after {spent}: "
            f"{self._last_words() or 'it said nothing'}"
        )

    def _left_s(self) -> float:
        return self._window.left_s(self._clock.now())

    def _start(self, left_s: float) -> subprocess.Popen[bytes]:
        words = ["run", "--ledger", str(self._ledger), "--budget-hours", f"{left_s / 3600:.5f}",
                 *self._arguments]  # fmt: skip
        try:
            with log_path(self._ledger).open("ab") as stream:
                stream.write(f"-- {utc_text()} flywheel {' '.join(words)}\n".encode())
                stream.flush()
                return subprocess.Popen(
                    [sys.executable, "-m", "flywheel", *words],
                    env={**os.environ, "PYTHONUNBUFFERED": "1"},
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                    start_new_session=True,
                )
        except OSError as error:
            raise FlywheelError(f"flywheel run could not be started: {error}.") from error

    def _wait(
        self, child: subprocess.Popen[bytes], stopped: Callable[[], bool], until_s: float
    ) -> None:
        while child.poll() is None:
            if stopped() or self._clock.monotonic_s() >= until_s:
                child.terminate()
                try:
                    child.wait(PATIENCE_S)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
                return
            self._clock.sleep(POLL_S)

    def _last_words(self) -> str:
        try:
            text = log_path(self._ledger).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
