"""`flywheel report`: what was learned, and one lever, one run or two configurations at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flywheel import cli_levers
from flywheel.errors import UsageError
from flywheel.terminal import (
    JsonOption,
    LedgerOption,
    emit,
    ledger_path,
    open_ledger,
)

app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


@app.callback()
def report(
    context: typer.Context,
    ledger: LedgerOption = Path("ledger.db"),
    html_path: Annotated[
        Path | None, typer.Option("--html", help="Also write the report as one HTML file.")
    ] = None,
    json_: JsonOption = False,
) -> int:
    """What was learned: bands, rejects, the best configuration and why.

    Example: flywheel report --html morning.html
    """
    if context.invoked_subcommand is not None:
        return 0
    from flywheel.report import gather, html, tables

    path = ledger_path(ledger)
    opened = open_ledger(path)
    try:
        document = gather.gather(opened, cli_levers.known(path))
    finally:
        opened.close()
    if html_path is not None:
        _write(html_path, html.render(document))
    if json_:
        emit(document.as_dict())
    else:
        tables.render(document)
    return 0


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error
