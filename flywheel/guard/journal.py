"""``guard.log``: a few lines for people, hashed as they are written."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from pathlib import Path

from flywheel.guard.word import LOG_FILE


class Journal:
    """The log of one guard.  A disk that takes no more never stops it."""

    def __init__(self, run_dir: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._fd = os.open(run_dir / LOG_FILE, flags, 0o644)
        self._digest = hashlib.sha256()
        self.length = 0

    def say(self, text: str) -> None:
        """Write one line with the time, in UTC."""
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
        line = f"{stamp}.{int(now * 1000) % 1000:03d}Z {text}\n".encode()
        try:
            written = os.write(self._fd, line)
        except OSError:
            return
        self._digest.update(line[:written])
        self.length += written

    def close(self) -> str:
        """Bring the log to the disk; its SHA-256."""
        with contextlib.suppress(OSError):
            os.fsync(self._fd)
        os.close(self._fd)
        return self._digest.hexdigest()
