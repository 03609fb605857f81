"""Two readers that poll what a report reads, against a writer that enters run after run."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from flywheel import best
from flywheel.errors import LedgerError
from flywheel.ledger import halts, models, views
from flywheel.ledger.bench.fabricate import append_run, fabricate, make_log
from flywheel.ledger.store import Ledger

READERS, READ_HZ, WRITE_HZ = 2, 10.0, 20.0
# A few nights' worth before the first poll.
MEASUREMENTS_BEFORE = 20_000
RUNS_READ = 12
_QUICK_PROMPTS = ("category-0-0",)
_UTC = "2026-06-01T00:00:00Z"


@dataclass(slots=True)
class Tally:
    """What one process saw: the time of each act in seconds, and every error's sentence."""

    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def to_json(self, wall_s: float) -> dict[str, Any]:
        """Counts and latencies in milliseconds."""
        ordered = sorted(self.seconds)
        return {
            "acts": len(ordered),
            "per_s": round(len(ordered) / wall_s, 2),
            "errors": self.errors,
            **{
                f"{name}_ms": round(ordered[min(len(ordered) - 1, int(len(ordered) * at))] * 1e3, 3)
                for name, at in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
                if ordered
            },
        }


def contention(folder: Path, seconds: float) -> dict[str, Any]:
    """Measure for so long in a new ledger in `folder`; every count and latency as JSON."""
    path = folder / "ledger.db"
    ledger = Ledger.open(path)
    try:
        fabricate(ledger, MEASUREMENTS_BEFORE)
        readers = [_start_reader(path, seconds) for _ in range(READERS)]
        began_s = time.monotonic()
        wrote = _tally(seconds, WRITE_HZ, _writes(ledger))
        wall_s = time.monotonic() - began_s
        read = [json.loads(child.communicate()[0]) for child in readers]
        with ledger.reading() as connection:
            runs = sum(len(block.runs) for block in views.load(connection).blocks())
    finally:
        ledger.close()
    errors = len(wrote.errors) + sum(len(one["errors"]) for one in read)
    return {
        "seconds": seconds, "asked": {"readers": READERS, "read_hz": READ_HZ, "write_hz": WRITE_HZ},
        "errors": errors, "writer": wrote.to_json(wall_s), "readers": read, "runs_at_end": runs,
    }  # fmt: skip


def _start_reader(path: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "flywheel.ledger.bench", "reader", str(path), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def reader(path: Path, seconds: float) -> dict[str, Any]:
    """Poll what a report reads; what this process saw as JSON."""

    def poll() -> Iterator[None]:
        while True:
            # As every command that only looks: from a copy in memory.
            ledger = Ledger.read(path, private=True)
            with closing(ledger), ledger.reading() as connection:
                _read(connection)
            yield

    began_s = time.monotonic()
    seen = _tally(seconds, READ_HZ, poll)
    return seen.to_json(time.monotonic() - began_s)


def _read(connection: Connection) -> None:
    """What a report reads: the history, the halts, and the numbers of the newest runs."""
    view = views.load(connection)
    best.fold(view)
    views.effective_configs(connection)
    halts.standing(connection)
    runs = [run.id for block in view.blocks() for run in block.runs]
    for run in runs[-RUNS_READ:]:
        views.measurements(connection, run)


def _writes(ledger: Ledger) -> Callable[[], Iterator[None]]:
    """Each act is one transaction: a block is planned and its one run, of a quick ruler, ends."""
    dice = random.Random(2)
    log = make_log(dice, _QUICK_PROMPTS)
    with ledger.reading() as connection:
        view = views.load(connection)
    variant, serial = view.variants[-1], max(b.serial for b in view.blocks())

    def write() -> Iterator[None]:
        nonlocal serial
        while True:
            serial += 1
            with ledger.transaction() as writer:
                writer.append(
                    models.block_plan, serial=serial, id=f"b{serial:05d}", variant_id=variant.id,
                    number=serial, hot=True, pattern="ABBA", seed=serial, why="made up",
                    created_utc=_UTC,
                )
                append_run(
                    writer, dice, block_id=f"b{serial:05d}",
                    arms={"A": variant.incumbent, "B": variant.candidate},
                    prompts=_QUICK_PROMPTS, log=log, began=_UTC, ended=_UTC,
                )  # fmt: skip
            yield

    return write


def _tally(seconds: float, hz: float, acts: Callable[[], Iterator[None]]) -> Tally:
    """Act at a steady rate; acts that come too late follow each other without a pause."""
    tally, act = Tally(), acts()
    began_s = time.monotonic()
    due_s = began_s
    while (at_s := time.monotonic()) < began_s + seconds:
        if at_s < due_s:
            time.sleep(due_s - at_s)
            continue
        try:
            next(act)
        except LedgerError as error:
            tally.errors.append(str(error))
            act = acts()
        tally.seconds.append(time.monotonic() - at_s)
        due_s += 1 / hz
    return tally
