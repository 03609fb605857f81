"""What `flywheel selftest` does once its options are read."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from flywheel.box import host
from flywheel.cli.terminal import FAILED, console, emit, error_console
from flywheel.errors import UsageError
from flywheel.ledger import models
from flywheel.loop import epoch
from flywheel.selftest import lanes
from flywheel.selftest.healthy import Healthy, healthy
from flywheel.selftest.lanes import Crashes
from flywheel.selftest.matrix import MATRIX
from flywheel.selftest.table import as_json, crash_line, fault_line, healthy_line, table
from flywheel.selftest.verdict import Verdict


def selftest(
    *, faults: bool, crash: int, healthy_runs: int, only: Sequence[str], seed: int, json_: bool
) -> int:
    """`flywheel selftest`."""
    if not (faults or crash or healthy_runs or only):
        raise UsageError("say what to test: --faults, --crash N, --healthy N or --only NAME.")
    names = chosen(only) if only else tuple(f.name for f in MATRIX) if faults else ()
    with _progress() as bar:
        verdicts = _faults(names, bar)
        crashed = _crash(crash, seed, bar) if crash else None
        well = _healthy(healthy_runs, seed, bar) if healthy_runs else None
    good = all(one.ok for one in verdicts)
    good = good and (crashed is None or crashed.good) and (well is None or well.good)
    if json_:
        emit({"good": good, "machine": machine(), "command": " ".join(["flywheel", *sys.argv[1:]]),
              **as_json(verdicts, crashed, well)})  # fmt: skip
    else:
        _print(verdicts, crashed, well)
    return 0 if good else FAILED


def chosen(only: Sequence[str]) -> tuple[str, ...]:
    """The faults that ``--only`` names, by name or by noun."""
    found: list[str] = []
    for word in only:
        named = [fault.name for fault in MATRIX if word in (fault.name, fault.noun)]
        if not named:
            nouns = ", ".join(dict.fromkeys(fault.noun for fault in MATRIX))
            raise UsageError(f"there is no fault named {word}; the kinds are {nouns}.")
        found += named
    return tuple(dict.fromkeys(found))


def machine() -> dict[str, Any]:
    """Where the figures come from."""
    return {
        "box": epoch.box(),
        "system": platform.platform(),
        "cores": host.cores(),
        "flywheel": _version(),
        "schema": models.SCHEMA_VERSION,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "load_1m": round(os.getloadavg()[0], 2),
    }


def _version() -> str | None:
    """The installed version; None in a tree that was never installed."""
    try:
        return metadata.version("flywheel-engine")
    except metadata.PackageNotFoundError:
        return None


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar for a person at a terminal; nothing elsewhere."""
    out = error_console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TimeElapsedColumn())  # fmt: skip
    with Progress(*columns, console=out, disable=not out.is_terminal, transient=True) as bar:
        yield bar


def _faults(names: Sequence[str], bar: Progress) -> list[Verdict]:
    if not names:
        return []
    task = bar.add_task("faults", total=len(names))
    found = {}
    for one in lanes.faults(names):
        found[one.fault] = one
        bar.update(task, advance=1, description=f"faults · {one.fault}")
    return [found[name] for name in names]


def _counter(bar: Progress, what: str, total: int) -> Callable[[int], None]:
    task = bar.add_task(what, total=total)
    return lambda done: bar.update(task, completed=done)


def _crash(kills: int, seed: int, bar: Progress) -> Crashes:
    return lanes.crashes(kills, seed, _counter(bar, "kills", kills))


def _healthy(runs: int, seed: int, bar: Progress) -> Healthy:
    return healthy(runs, seed, tell=_counter(bar, "healthy runs", runs))


def _print(verdicts: Sequence[Verdict], crashed: Crashes | None, well: Healthy | None) -> None:
    out = console()
    if verdicts:
        out.print(table(verdicts))
        out.print(fault_line(verdicts))
    if crashed is not None:
        out.print(crash_line(crashed))
        for lane in crashed.lanes:
            for complaint in lane.account.complaints:
                out.print(f"  {complaint}", style="red")
    if well is not None:
        out.print(healthy_line(well))
        for refused in (*well.refused, *well.account.complaints):
            out.print(f"  {refused}", style="red")
