"""`flywheel report width`: what a step costs by width, and what acceptance pays for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flywheel.cli import paper
from flywheel.cli.terminal import JsonOption, LedgerOption, console, emit, ledger_path, open_ledger
from flywheel.errors import UsageError

if TYPE_CHECKING:
    from flywheel.width.evidence import Evidence


def width(
    context: typer.Context,
    ledger: LedgerOption = Path("ledger.db"),
    imported: Annotated[
        str | None,
        typer.Option("--imported", help="Analyse this imported log instead of our own runs."),
    ] = None,
    profile: Annotated[
        Path | None, typer.Option("--profile", help="Analyse the log of a profile run instead.")
    ] = None,
    html_path: Annotated[
        Path | None, typer.Option("--html", help="Also write the page as one HTML file.")
    ] = None,
    json_: JsonOption = False,
) -> int:
    """Cost by width, acceptance by position, best widths, and the ceilings of adapting them.

    Example: flywheel report width --html width.html
    """
    from rich.table import Table
    from rich.text import Text

    from flywheel.width import page

    if imported is not None and profile is not None:
        raise UsageError("--imported and --profile name different logs; give one of them.")
    # As `report --ledger X width` or as `report width --ledger X`.
    before, before_json = context.obj or (ledger_path(ledger), False)
    source = context.get_parameter_source("ledger")
    given = source is not None and source.name == "COMMANDLINE"
    found = _profiled(profile) if profile else _recorded(
        ledger_path(ledger) if given else before, imported)
    made = page.width_page(found)
    if html_path is not None:
        paper.write(html_path, page.html(made))
    if json_ or before_json:
        emit(made.as_dict())
        return 0
    table = Table.grid(padding=(0, 1))
    table.add_column(width=10, no_wrap=True)
    table.add_column(overflow="fold")
    for head, text in page.lines(made):
        table.add_row(Text(head, style="dim"), Text(text))
    console().print(table)
    return 0


def _profiled(path: Path) -> Evidence:
    from flywheel.width import profile

    return profile.evidence(path.name, paper.text(path))


def _recorded(path: Path, imported: str | None) -> Evidence:
    from flywheel.width import gather

    opened = open_ledger(path)
    try:
        with opened.reading() as connection:
            if imported is None:
                return gather.own(connection)
            return gather.foreign(connection, imported)
    finally:
        opened.close()
