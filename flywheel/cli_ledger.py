"""`flywheel ledger`: prove that what is recorded follows from the stored logs."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.text import Text

from flywheel.terminal import (
    FAILED,
    JsonOption,
    LedgerOption,
    console,
    emit,
    ledger_path,
    open_ledger,
)

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="The ledger: rebuild, check."
)


@app.command()
def rebuild(ledger: LedgerOption = Path("ledger.db"), json_: JsonOption = False) -> int:
    """Re-derive every estimate, decision and the best from the stored logs, and compare.

    Example: flywheel ledger rebuild
    """
    from flywheel.ledger.rebuild import rebuild as rebuild_ledger

    opened = open_ledger(ledger_path(ledger))
    try:
        found = rebuild_ledger(opened)
    finally:
        opened.close()
    if json_:
        emit({
            "same": found.same, "logs": found.logs, "blocks": found.blocks,
            "decisions": found.decisions, "differences": list(found.differences),
            "best": dict(found.best.config),
        })  # fmt: skip
    else:
        out = console()
        out.print(f"{found.logs} logs, {found.blocks} blocks, {found.decisions} decisions")
        for line in found.differences:
            out.print(Text(line, style="red"))
        out.print("the same best configuration" if found.same else "it does not come out the same")
    return 0 if found.same else FAILED


@app.command()
def check(ledger: LedgerOption = Path("ledger.db"), json_: JsonOption = False) -> int:
    """Is the file whole, and does every row have the row that it names?

    Example: flywheel ledger check
    """
    from flywheel.ledger.store import check_integrity

    path = ledger_path(ledger)
    opened = open_ledger(path)
    try:
        check_integrity(opened)
    finally:
        opened.close()
    if json_:
        emit({"ledger": str(path), "whole": True})
    else:
        console().print(Text(f"{path} is whole"))
    return 0
