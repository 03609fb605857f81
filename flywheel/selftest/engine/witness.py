"""The scripted engine's own account of its starts and seals, which the loop never reads.

One line of JSON an occasion, appended whole, so that a count of it owes nothing to the code that
is under test.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any


def tell(path: Path | None, what: str, **facts: Any) -> None:
    """Append one line; O_APPEND makes lines of many processes whole."""
    if path is None:
        return
    line = json.dumps({"what": what, "pid": os.getpid(), **facts}) + "\n"
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


def told(path: Path) -> list[dict[str, Any]]:
    """Every line so far."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def log_sha(log: Path) -> str:
    """Hash of a log as it lies on the disk."""
    return hashlib.sha256(log.read_bytes()).hexdigest()
