"""`flywheel ledger`: prove it, make it again, copy it, carry it elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from flywheel.box.clock import count, utc_text
from flywheel.cli.terminal import (
    FAILED,
    JsonOption,
    LedgerOption,
    console,
    emit,
    error_console,
    ledger_path,
    open_ledger,
)
from flywheel.errors import UsageError

SHOWN = 20

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="The ledger: verify, rebuild, export, import, backup.",
)


@app.command()
def verify(ledger: LedgerOption = Path("ledger.db"), json_: JsonOption = False) -> int:
    """Is the file whole, are its rules in force, and does every number follow from its log?

    Example: flywheel ledger verify
    """
    from flywheel.ledger.verify import verify as verify_ledger

    path = ledger_path(ledger)
    opened = open_ledger(path)
    try:
        with _progress(shown=not json_) as progress:
            found = verify_ledger(opened, progress=progress)
    finally:
        opened.close()
    if json_:
        emit({
            "ledger": str(path), "whole": found.whole, "runs": found.runs, "logs": found.logs,
            "measurements": found.measurements, "problems": list(found.problems),
        })  # fmt: skip
    else:
        out = console()
        for line in found.problems[:SHOWN]:
            out.print(Text(line, style="red"))
        if len(found.problems) > SHOWN:
            out.print(f"and {len(found.problems) - SHOWN} more")
        counted = ", ".join((
            count(found.runs, "run"), count(found.logs, "log"),
            count(found.measurements, "measurement"),
        ))  # fmt: skip
        said = "is whole" if found.whole else "is not whole"
        out.print(Text(f"{path} {said}: {counted}", style="green" if found.whole else "red"))
    return 0 if found.whole else FAILED


@contextmanager
def _progress(*, shown: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error while that is a terminal."""
    from rich.progress import Progress

    page = error_console()
    bar = Progress(console=page, transient=True, disable=not (shown and page.is_terminal))
    with bar:
        task = bar.add_task("runs", total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield show


@app.command()
def rebuild(
    ledger: LedgerOption = Path("ledger.db"),
    runs: Annotated[
        Path | None,
        typer.Option("--from", help="Make a new ledger from run directories alone: runs/."),
    ] = None,
    out_path: Annotated[
        Path | None, typer.Option("--out", help="The new ledger; only with --from.")
    ] = None,
    json_: JsonOption = False,
) -> int:
    """Re-derive every estimate, decision and the best from the stored logs, and compare.

    With --from, make a new ledger from the run directories, as if it had been lost.

    Example: flywheel ledger rebuild --from runs/ --out again.db
    """
    if (runs is None) != (out_path is None):
        raise UsageError("--from and --out go together: flywheel ledger rebuild --from runs/ "
                         "--out again.db")
    if runs is not None and out_path is not None:
        return _rebuild_from(runs, ledger_path(out_path), json_=json_)
    from flywheel.ledger.rebuild import rebuild as rebuild_ledger

    opened = open_ledger(ledger_path(ledger))
    try:
        found = rebuild_ledger(opened)
    finally:
        opened.close()
    if json_:
        emit({
            "same": found.same, "logs": found.logs, "blocks": found.blocks,
            "decisions": found.decisions, "imported": found.imported,
            "differences": list(found.differences),
            "best": None if found.best is None else dict(found.best.config),
        })  # fmt: skip
    else:
        out = console()
        counted = [count(found.logs, "log"), count(found.blocks, "block"),
                   count(found.decisions, "decision")]
        if found.imported:
            counted.append(count(found.imported, "imported file"))
        out.print(", ".join(counted))
        for line in found.differences:
            out.print(Text(line, style="red"))
        same = "the same readings" if found.best is None else "the same best configuration"
        out.print(same if found.same else "it does not come out the same")
    return 0 if found.same else FAILED


def _rebuild_from(runs: Path, path: Path, *, json_: bool) -> int:
    from flywheel.ledger.replay import replay

    with _progress(shown=not json_) as progress:
        found = replay(runs.expanduser(), path, progress=progress)
    if json_:
        emit({
            "ledger": str(path), "runs": found.runs, "skipped": list(found.skipped),
            "best": dict(found.best.config),
        })  # fmt: skip
    else:
        out = console()
        for line in found.skipped:
            out.print(Text(line, style="yellow"))
        out.print(Text(f"{path} was made from {count(found.runs, 'run')}"))
    return 0


@app.command()
def export(
    out_path: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")],
    ledger: LedgerOption = Path("ledger.db"),
    json_: JsonOption = False,
) -> int:
    """Write the whole ledger as one text file that any later flywheel's import can check.

    Example: flywheel ledger export history.jsonl
    """
    from flywheel.ledger.portable import export as export_ledger

    opened = open_ledger(ledger_path(ledger))
    try:
        made = export_ledger(opened, out_path.expanduser())
    finally:
        opened.close()
    if json_:
        emit({"path": str(made.path), "rows": made.rows, "sha256": made.sha256})
    else:
        console().print(Text(f"{made.path}: {count(made.rows, 'row')}, sha256 {made.sha256}"))
    return 0


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="What export wrote.")],
    ledger: LedgerOption = Path("ledger.db"),
    json_: JsonOption = False,
) -> int:
    """Make a ledger of an exported file; an existing one with rows is left alone.

    Example: flywheel ledger import history.jsonl --ledger here.db
    """
    from flywheel.ledger.portable import import_ as import_ledger

    path, source = ledger_path(ledger), source.expanduser()
    if not source.exists() or source.is_dir():
        raise UsageError(f"there is no file {source}; import wants what export wrote.")
    made = import_ledger(source, path)
    if json_:
        emit({"ledger": str(path), "rows": made.rows, "sha256": made.sha256})
    else:
        console().print(Text(f"{path}: {count(made.rows, 'row')}"))
    return 0


@app.command("backup")
def backup_(ledger: LedgerOption = Path("ledger.db"), json_: JsonOption = False) -> int:
    """Copy the ledger into its folder of backups, unless the newest copy is the same.

    Example: flywheel ledger backup
    """
    from flywheel.ledger import backup
    from flywheel.ledger.opening import require_rules

    path = ledger_path(ledger)
    opened = open_ledger(path)
    try:
        # A copy without the rules would one day pass for the newest good one.
        require_rules(opened)
    finally:
        opened.close()
    made = backup.back_up(path, utc_text())
    if json_:
        emit({"path": str(made.path), "made": made.made})
    else:
        words = "" if made.made else " (nothing has changed since)"
        console().print(Text(f"{made.path}{words}"))
    return 0
