"""The supervisor's side: start a guard, hand it the engine, notice its death, take its word."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from flywheel.box.identity import Identity
from flywheel.guard.word import LEFT, LOST, GuardWord, read_sealed

READY_PATIENCE_S = 20.0
# On top of the guard's own patience with stuck processes, memory and a full disk.
WORD_PATIENCE_S = 35.0


class GuardRefused(Exception):  # noqa: N818 - reads as the fact that it is
    """The guard cannot guard this run; the sentence says why."""


class GuardLink:
    """A running guard, as its parent sees it."""

    def __init__(self, run_dir: Path, manifest: dict[str, Any]) -> None:
        """Start the guard and wait until it sees the memory; GuardRefused when it cannot."""
        limits = manifest["guard"]
        if not isinstance(limits, dict):
            raise GuardRefused("the manifest's limits for the guard are no JSON object")
        self._run_dir = run_dir
        self._manifest = manifest
        self._patience_s = WORD_PATIENCE_S + float(limits.get("back_patience_s", 0.0))
        root = Path(__file__).resolve().parent.parent.parent
        environment = dict(os.environ)
        paths = [str(root), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        environment.pop("FLYWHEEL_LEASE_FD", None)
        # Only the driver's library is an installed package; without them it starts sooner.
        lean = () if limits.get("device") else ("-S",)
        try:
            # A session of its own: what ends the supervisor's group must not end the guard.
            self._process = subprocess.Popen(
                [sys.executable, *lean, "-m", "flywheel.guard", str(run_dir)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise GuardRefused(f"the guard could not be started: {error}") from error
        said = self._first_line()
        if said != "ready":
            self.end()
            why = said.removeprefix("refused: ") or "it did not get ready"
            raise GuardRefused(f"the guard could not be started: {why}")

    @property
    def pid(self) -> int:
        """The guard's pid; it is this process's child, so it is nobody else's until reaped."""
        return self._process.pid

    def _first_line(self) -> str:
        assert self._process.stdout is not None
        fd, text = self._process.stdout.fileno(), b""
        deadline = time.monotonic() + READY_PATIENCE_S
        while b"\n" not in text:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([fd], [], [], left_s)[0]:
                break
            piece = os.read(fd, 4096)
            if not piece:
                break
            text += piece
        return text.partition(b"\n")[0].decode("utf-8", "replace")

    def tell(self, engine: Identity, supervisor: Identity, *, alone: bool) -> None:
        """Hand over the engine.  The line stays open: its end tells the guard of our death."""
        body = {"engine": engine.to_json(), "supervisor": supervisor.to_json(), "alone": alone}
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write((json.dumps(body) + "\n").encode())
            self._process.stdin.flush()

    def dead(self) -> bool:
        """Whether the guard has ended; never blocks."""
        return self._process.poll() is not None

    def word(self) -> GuardWord:
        """Wait for the guard's end, bounded, and take its word.

        The guard ends by itself once nobody of the run is left and the memory is back.
        """
        try:
            status = self._process.wait(self._patience_s)
        except subprocess.TimeoutExpired:
            self.end()
            return GuardWord(LOST, f"the guard did not end within {self._patience_s:g} s")
        if status != 0:
            return GuardWord(LOST, f"the guard ended with status {status}")
        word = read_sealed(
            self._run_dir, str(self._manifest.get("run_id")), str(self._manifest.get("nonce"))
        )
        if word.verdict == LEFT and word.worst_gap_s > self._blind_limit_s:
            return GuardWord(
                LOST,
                f"the guard did not look for {word.worst_gap_s:.0f} s",
                low_water_bytes=word.low_water_bytes,
                worst_gap_s=word.worst_gap_s,
            )
        return word

    @property
    def _blind_limit_s(self) -> float:
        return float(self._manifest.get("heartbeat_gap_s", 30.0))

    def end(self) -> None:
        """End the guard itself: it was never given an engine, or does not answer any more."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


