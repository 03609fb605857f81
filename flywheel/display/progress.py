"""Follows the growing log of a run for its heartbeats; for display only, never for judging."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Progress:
    """The engine's own last word: which phase, and how much of the work is done."""

    phase: str = "starting"
    done: int = 0
    total: int = 0
    beats: int = 0

    @property
    def share(self) -> float | None:
        """Done of total in [0, 1]; None before the engine has said."""
        return min(1.0, self.done / self.total) if self.total > 0 else None


class Follower:
    """Reads what was appended since the last look; each look costs only the new bytes."""

    def __init__(self, path: Path, nonce: str) -> None:
        self._path = path
        self._mark = f"@{nonce} ".encode()
        self._offset = 0
        self._rest = b""
        self.progress = Progress()

    def look(self) -> Progress:
        """The newest heartbeat so far."""
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._offset)
                new = stream.read()
        except OSError:
            return self.progress
        self._offset += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            if line.startswith(self._mark) and b'"heartbeat"' in line:
                self._take(line[len(self._mark) :])
        return self.progress

    def _take(self, body: bytes) -> None:
        try:
            event = json.loads(body)
            done, total, phase = int(event["done"]), int(event["total"]), str(event["phase"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return
        self.progress = Progress(phase, done, total, self.progress.beats + 1)
