"""`python -m flywheel.ledger.bench contention | scale [--json]`: the ledger's own figures.

Example: python -m flywheel.ledger.bench scale --measurements 1000000 --json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

import sqlalchemy

from flywheel.box import cpu
from flywheel.ledger import models, place, store
from flywheel.ledger.bench.contention import contention, reader
from flywheel.ledger.bench.scale import scale


def main(arguments: list[str] | None = None) -> int:
    """Run one of the figures and print it; returns the exit code: 1 when there were errors."""
    asked = _parser().parse_args(arguments)
    if asked.figure == "reader":
        print(json.dumps(reader(asked.path, asked.seconds)))
        return 0
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        folder = Path(name)
        if asked.figure == "contention":
            told = contention(folder, asked.seconds)
        else:
            told = scale(folder, asked.measurements)
        machine = _machine(folder)
    words = sys.argv[1:] if arguments is None else arguments
    command = f"python -m flywheel.ledger.bench {' '.join(words)}"
    body = {"command": command, "machine": machine, **told}
    print(json.dumps(body, indent=1) if asked.json else _text(told))
    return 1 if told.get("errors") else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m flywheel.ledger.bench",
        description="What the ledger costs: with many measurements, and with readers and a writer.",
        epilog="example: python -m flywheel.ledger.bench contention --seconds 60 --json",
    )
    figures = parser.add_subparsers(dest="figure", required=True)
    shared = figures.add_parser("contention", help="two readers at 10 Hz, a writer at 20 Hz")
    shared.add_argument("--seconds", type=float, default=60.0)
    large = figures.add_parser("scale", help="size, report and status of a large ledger")
    large.add_argument("--measurements", type=int, default=1_000_000)
    for figure in (shared, large):
        figure.add_argument("--folder", type=Path, help="where the made-up ledger lies meanwhile")
        figure.add_argument("--json", action="store_true", help="one JSON document")
    poller = figures.add_parser("reader", help="one reader of contention")
    poller.add_argument("path", type=Path)
    poller.add_argument("seconds", type=float)
    return parser


def _machine(folder: Path) -> dict[str, Any]:
    return {
        "processor": cpu.state().model,
        "cores": cpu.cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_1m": os.getloadavg()[0],
        "nice": os.nice(0),
        "file_system": place.filesystem(folder),
        "system": platform.platform(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "sqlalchemy": sqlalchemy.__version__,
        "schema": models.SCHEMA_VERSION,
        "synchronous": store.SYNCHRONOUS,
    }


def _text(told: dict[str, Any]) -> str:
    if "writer" in told:
        wrote = told["writer"]
        lines = [f"writer   {wrote['acts']} runs entered, p99 {wrote['p99_ms']} ms"]
        lines += [f"reader   {r['acts']} reads, p99 {r['p99_ms']} ms" for r in told["readers"]]
        return "\n".join([*lines, f"errors   {told['errors']}"])
    lines = [f"ledger   {told['measurements']} measurements, {told['size_bytes'] / 1e6:.0f} MB"]
    for name, took in told["commands"].items():
        lines.append(f"{name:<8} {took['median_s']} s (aim: under {told['aims_s'][name]} s)")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
