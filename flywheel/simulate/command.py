"""`python -m flywheel.simulate`: the rule's error rates and power, from invented campaigns.

With `--ordering`, how soon the queue's order finds the gain that is there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Table

from flywheel.box.clock import count
from flywheel.cli import paper
from flywheel.cli.terminal import FAILED, open_ledger, sentence
from flywheel.errors import FlywheelError, UsageError
from flywheel.ledger import views
from flywheel.simulate import ordering, page
from flywheel.simulate.landscape import LANDSCAPES
from flywheel.simulate.outcome import Summary
from flywheel.simulate.permute import permute
from flywheel.simulate.study import rows, study
from flywheel.simulate.truth import LEVERS
from flywheel.statistics.campaign import FULL
from flywheel.statistics.decide import two_digits

SHORT, LONG = 4, 200
QUEUES = 40
# More would fill the memory of the box before the first campaign, or its process table.
MOST_CAMPAIGNS, MOST_PROCESSES = 10_000, 256


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study and print it; returns the exit code."""
    asked = _parser().parse_args(arguments)
    try:
        if asked.permute is not None:
            return _permute(asked.permute, asked.campaigns or LONG, asked.seed, json_=asked.json)
        if asked.ordering:
            return _ordering(asked)
        if asked.stored is not None:
            return _draw(_stored(asked.stored), asked.docs or asked.stored.parent)
        return _study(asked)
    except FlywheelError as error:
        sys.stderr.write(f"flywheel.simulate: {sentence(str(error))}\n")
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:  # standard output took no more
        sys.stderr.write(f"flywheel.simulate: {sentence(error.strerror or str(error))}\n")
        return FAILED


def _study(asked: argparse.Namespace) -> int:
    campaigns = asked.campaigns or (LONG if asked.full else SHORT)
    # Known before the first campaign, not after the last.
    if asked.out is not None:
        paper.writable(asked.out)
    if asked.docs is not None:
        page.require(asked.docs)
    wanted = rows()
    began = time.monotonic()
    with _progress(quiet=asked.json) as progress:
        task = progress.add_task("campaigns", total=len(wanted) * campaigns)
        found = study(
            wanted, campaigns, seed=asked.seed, processes=asked.processes,
            done=lambda: progress.advance(task),
        )
    body = document(found, asked.seed, campaigns, time.monotonic() - began)
    if asked.json:
        sys.stdout.write(json.dumps(body, indent=1) + "\n")
    else:
        _print(found, campaigns, time.monotonic() - began)
    if asked.out:
        paper.write(asked.out, json.dumps(body, indent=1) + "\n")
    if asked.docs:
        _draw(found, asked.docs)
    return 0


def _ordering(asked: argparse.Namespace) -> int:
    for option, value in (("--docs", asked.docs), ("--from", asked.stored)):
        if value is not None:
            raise UsageError(f"{option} goes without --ordering.")
    queues = asked.campaigns or (QUEUES if asked.full else SHORT)
    if asked.out is not None:
        paper.writable(asked.out)
    began = time.monotonic()
    with _progress(quiet=asked.json) as progress:
        task = progress.add_task("queues", total=len(LANDSCAPES) * queues)
        found = ordering.study(
            queues, seed=asked.seed, processes=asked.processes,
            done=lambda: progress.advance(task),
        )
    body = {
        **_origin(f"--ordering --campaigns {queues} --seed {asked.seed}",
                  time.monotonic() - began),
        "landscapes": [asdict(one) for one in LANDSCAPES.values()],
        "rows": [asdict(row) for row in found],
    }
    if asked.json:
        sys.stdout.write(json.dumps(body, indent=1) + "\n")
    else:
        _print_ordering(found)
    if asked.out:
        paper.write(asked.out, json.dumps(body, indent=1) + "\n")
    return 0


def _stored(path: Path) -> tuple[Summary, ...]:
    text = paper.text(path)
    try:
        found = tuple(Summary.of(row) for row in json.loads(text)["rows"])
    except KeyError as error:
        raise UsageError(f"{path} holds no study: it has no {error}.") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"{path} holds no study: {error}.") from error
    if not found:
        raise UsageError(f"{path} holds no study: it has no row.")
    return found


def _draw(found: Sequence[Summary], folder: Path) -> int:
    page.write(folder, found)
    return 0


def _permute(path: Path, times: int, seed: int, *, json_: bool) -> int:
    opened = open_ledger(path)
    try:
        with opened.reading() as connection:
            found = permute(views.load(connection), times, seed)
    finally:
        opened.close()
    if json_:
        sys.stdout.write(json.dumps(asdict(found)) + "\n")
    elif not found.decided:
        sys.stdout.write("no verdict of this ledger can be shuffled: nothing was measured\n")
    else:
        sys.stdout.write(
            f"{found.promoted} of {found.decided} verdicts on shuffled labels are promotions "
            f"(at most {two_digits(found.high)}); {found.times} shuffles\n"
        )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m flywheel.simulate",
        description="Campaigns of 300 levers on invented boxes, by our rule and by others'.",
        epilog="Example: python -m flywheel.simulate --full --out simulate.json",
    )
    parser.add_argument("--full", action="store_true",
                        help=f"{LONG} campaigns a row (most of an hour)")
    parser.add_argument("--ordering", action="store_true",
                        help="in which order are levers best tried? queues of 200, seven orders "
                        f"(--full: {QUEUES} queues a row, minutes)")
    parser.add_argument("--campaigns", type=_count(MOST_CAMPAIGNS),
                        help=f"campaigns a row (default {SHORT})")
    parser.add_argument("--seed", type=_seed, default=1, help="the first campaign's seed")
    parser.add_argument("--processes", type=_count(MOST_PROCESSES), default=1,
                        help="worker processes")
    parser.add_argument("--out", type=Path, help="also write the JSON to this file")
    parser.add_argument("--docs", type=Path, help="also write pictures and table into this folder")
    parser.add_argument("--from", dest="stored", type=Path, metavar="FILE",
                        help="run nothing: pictures and table from a study written by --out")
    parser.add_argument("--permute", type=Path, metavar="LEDGER",
                        help="run nothing: decide a real ledger again with its labels shuffled")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _count(most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = int(text) if text.isdecimal() and len(text) < 10 else 0
        if not 0 < value <= most:
            raise argparse.ArgumentTypeError(f"{text[:40]} is no count from 1 to {most}")
        return value

    return read


def _seed(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text[:40]} is no seed: a number from 0 up")
    return int(text)


def _progress(*, quiet: bool) -> Progress:
    return Progress(
        "{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True,
        disable=quiet or not sys.stderr.isatty(),
    )


def document(
    found: Sequence[Summary], seed: int, campaigns: int, wall_s: float
) -> dict[str, object]:
    """The study as plain JSON, with the machine and versions that it ran on."""
    return {
        **_origin(f"--campaigns {campaigns} --seed {seed}", wall_s),
        "levers": LEVERS,
        "settings": FULL.as_dict(),
        "rows": [s.as_dict() for s in found],
    }


def _origin(options: str, wall_s: float) -> dict[str, object]:
    """How, where and with what a study was made."""
    return {
        "command": f"python -m flywheel.simulate {options}",
        "machine": {"cpu": _cpu(), "cores": os.cpu_count(), "system": platform.system()},
        "versions": {"python": platform.python_version(), **_versions("numpy", "scipy")},
        "wall_s": round(wall_s, 1),
    }


def _versions(*packages: str) -> dict[str, str]:
    return {name: version(name) for name in packages}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _print(found: Sequence[Summary], campaigns: int, wall_s: float) -> None:
    table = Table(box=None, padding=(0, 1))
    for name in ("rule", "box", "levers", "loads/lever", "false/campaign", "at most", "any false",
                 "FDR", "power", "true %", "claimed %"):
        table.add_column(name, justify="left" if name in ("rule", "box", "levers") else "right")
    for s in found:
        table.add_row(
            s.rule, s.box, s.truth, f"{s.loads_per_lever:.1f}", f"{s.false:.2f}",
            f"{s.false_high:.2f}", f"{s.any_false:.2f}", f"{s.fdr:.2f}",
            "" if s.power is None else f"{s.power:.2f}", f"{s.true_gain * 100:.1f}",
            f"{s.claimed_gain * 100:.1f}",
        )
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(table)
    console.print(f"{count(campaigns, 'campaign')} of {LEVERS} levers a row, {wall_s:.1f} s")


def _shown(row: ordering.Ordered) -> str:
    if row.low is None or row.high is None:
        return f"{row.of_oracle:.2f}"
    return f"{row.of_oracle:.2f} [{row.low:.2f}, {row.high:.2f}]"


def _print_ordering(found: Sequence[ordering.Ordered]) -> None:
    names = ordering.ORDERS
    table = Table(box=None, padding=(0, 1))
    table.add_column("area under gain by time, of the oracle's")
    for name in names:
        table.add_column(name, justify="right")
    cells = {(row.landscape, row.horizon, row.order): row for row in found}
    for landscape, horizon in dict.fromkeys((row.landscape, row.horizon) for row in found):
        until = "to the end" if horizon == 1.0 else f"in the first {horizon:.0%}"
        rows = [cells[landscape, horizon, name] for name in names]
        table.add_row(f"{landscape}, {until}", *map(_shown, rows))
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    console.print(f"{count(found[0].queues, 'queue')} a row")
