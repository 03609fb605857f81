"""The run's log: prose for people, `@nonce` lines for the parser, a heartbeat and a seal."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil


class Journal:
    """Appends events with a running hash; a thread beats in between. One writer at a time."""

    def __init__(self, path: Path, nonce: str, heartbeat_s: float) -> None:
        self._prefix = f"@{nonce} "
        self._stream = path.open("w", encoding="utf-8")
        self._hash = hashlib.sha256()
        self._lock = threading.Lock()
        self._sequence = 0
        self._sealed = False
        self._heartbeat_s = heartbeat_s
        self._stop = threading.Event()
        self._beat = threading.Thread(target=self._beats, daemon=True)
        self._process = psutil.Process()
        self.phase = "start"
        self.done = 0
        self.total = 0

    def __enter__(self) -> Self:
        self._beat.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None
    ) -> None:
        self._stop.set()
        self._beat.join()
        self._stream.close()

    def say(self, sentence: str) -> None:
        """A line for people; an `@` in front would make it look like an event, so it is spaced."""
        with self._lock:
            for line in sentence.splitlines():
                self._stream.write((" " + line if line.startswith("@") else line) + "\n")
            self._stream.flush()

    def event(self, event: str, **fields: Any) -> None:
        """One event; NaN and infinity are refused by the encoder."""
        with self._lock:
            self._write(event, fields)

    def seal(self, **fields: Any) -> None:
        """The last event; `counts.events` includes it, `seal` is the hash over all before it."""
        with self._lock:
            counts = {**fields.pop("counts"), "events": self._sequence + 1}
            self._write("end", {"counts": counts, **fields, "seal": self._hash.hexdigest()})
            self._sealed = True
            os.fsync(self._stream.fileno())

    def _write(self, event: str, fields: dict[str, Any]) -> None:
        if self._sealed:
            return
        body = {"event": event, "seq": self._sequence, "t_ns": time.monotonic_ns(), **fields}
        line = self._prefix + json.dumps(body, separators=(",", ":"), allow_nan=False) + "\n"
        self._stream.write(line)
        self._stream.flush()
        self._hash.update(line.encode())
        self._sequence += 1

    def _beats(self) -> None:
        while not self._stop.wait(self._heartbeat_s):
            if self._sequence == 0:
                continue  # the first event is `start`
            self.event(
                "heartbeat",
                phase=self.phase,
                done=self.done,
                total=self.total,
                load_1m=round(os.getloadavg()[0], 2),
                rss_bytes=self._process.memory_info().rss,
                mem_available_bytes=psutil.virtual_memory().available,
            )
