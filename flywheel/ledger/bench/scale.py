"""A ledger with very many measurements: its size, and how long a person waits for an answer."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from flywheel.ledger.bench.fabricate import fabricate
from flywheel.ledger.opening import open_for_writing
from flywheel.ledger.store import Ledger

REPEATS = 5
AIMS_S = {"report": 2.0, "status": 0.3}


def scale(folder: Path, measurements: int) -> dict[str, Any]:
    """Make up a ledger in `folder` and time the commands on it, each in a new process."""
    path = folder / "ledger.db"
    ledger = Ledger.open(path)
    began_s = time.monotonic()
    made = fabricate(ledger, measurements)
    ledger.close()
    made_s = time.monotonic() - began_s
    began_s = time.monotonic()
    open_for_writing(path, now_utc="2026-12-01T00:00:00Z").ledger.close()
    return {
        "measurements": made.measurements, "runs": made.runs, "variants": made.variants,
        "campaigns": made.campaigns, "size_bytes": path.stat().st_size,
        "bytes_per_measurement": round(path.stat().st_size / made.measurements, 1),
        "made_s": round(made_s, 1),
        "checked_and_copied_s": round(time.monotonic() - began_s, 2),
        "commands": {name: _timed(name, path) for name in AIMS_S},
        "aims_s": AIMS_S,
    }  # fmt: skip


def _timed(name: str, path: Path) -> dict[str, Any]:
    """Wall and processor seconds of a command, from its start to its exit."""
    wall, cpu = [], []
    for _ in range(REPEATS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began_s = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "flywheel", name, "--ledger", str(path), "--json"],
            capture_output=True, check=True,
        )  # fmt: skip
        wall.append(time.monotonic() - began_s)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert json.loads(done.stdout)
    return {
        "median_s": round(median(wall), 3), "least_s": round(min(wall), 3),
        "cpu_median_s": round(median(cpu), 3), "wall_s": [round(one, 3) for one in wall],
    }  # fmt: skip
