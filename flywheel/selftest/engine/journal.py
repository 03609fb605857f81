"""The scripted engine's log: prose, and numbered events that the seal covers."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any


def sha(text: str) -> str:
    """SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


class Journal:
    """Writes events under one nonce; ``skew_ns`` is by how much its clock lies."""

    def __init__(self, path: Path, nonce: str, heartbeat_s: float = 1.0) -> None:
        self.path = path
        self.stream = path.open("w", encoding="utf-8")
        self.nonce = nonce
        self.heartbeat_s = heartbeat_s
        self.seq = 0
        self.skew_ns = 0
        self.digest = hashlib.sha256()
        self.phase, self.done, self.total = "load", 0, 1
        self.silent = False
        self._beat_s = time.monotonic()

    def now_ns(self) -> int:
        """The time that events carry, in nanoseconds."""
        return time.monotonic_ns() + self.skew_ns

    def say(self, text: str) -> None:
        """A line of prose."""
        self.stream.write(text + "\n")
        self.stream.flush()

    def line(self, name: str, body: dict[str, Any]) -> str:
        """The next event as a line, without its newline."""
        event = {"event": name, "seq": self.seq, "t_ns": self.now_ns(), **body}
        return f"@{self.nonce} {json.dumps(event)}"

    def event(self, name: str, **body: Any) -> None:
        """Write one event and count it into the seal."""
        line = self.line(name, body)
        self.seq += 1
        self.digest.update(line.encode() + b"\n")
        self.stream.write(line + "\n")
        self.stream.flush()

    def beat(self, **changes: Any) -> None:
        """One heartbeat."""
        self._beat_s = time.monotonic()
        body = {
            "phase": self.phase, "done": self.done, "total": self.total, "load_1m": 0.5,
            "rss_bytes": 10_000_000, "mem_available_bytes": 8_000_000_000, **changes,
        }  # fmt: skip
        self.event("heartbeat", **body)

    def rest(self, seconds: float) -> None:
        """Let that much time really pass, with its heartbeats."""
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            if not self.silent and now - self._beat_s >= self.heartbeat_s:
                self.beat()
            if now >= until:
                return
            time.sleep(min(until - now, max(0.0, self._beat_s + self.heartbeat_s - now) or 0.01))
