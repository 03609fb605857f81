"""`flywheel report`: what was learned, and one lever, one run or two configurations at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flywheel import priority
from flywheel.box.clock import SystemClock
from flywheel.cli import levers as cli_levers, paper
from flywheel.cli.terminal import (
    FAILED,
    JsonOption,
    LedgerOption,
    console,
    emit,
    ledger_path,
    open_ledger,
)
from flywheel.errors import UsageError

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from flywheel.report.document import Document
    from flywheel.report.imported import ImportedLine

app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


@app.callback()
def report(
    context: typer.Context,
    ledger: LedgerOption = Path("ledger.db"),
    since: Annotated[
        str | None,
        typer.Option("--since", help="Only what ended since: 8h, 2d, yesterday, or an ISO time."),
    ] = None,
    html_path: Annotated[
        Path | None, typer.Option("--html", help="Also write the report as one HTML file.")
    ] = None,
    md_path: Annotated[
        Path | None,
        typer.Option("--md", help="Also write LEVERS.md, RUNS.md, HEAD_REGISTRY.md into a folder."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="With --md: write nothing; fail when a file is stale.")
    ] = False,
    json_: JsonOption = False,
) -> int:
    """What was learned: bands, rejects, the best configuration and why.

    Example: flywheel report --since yesterday --html morning.html
    """
    path = ledger_path(ledger)
    if context.invoked_subcommand is not None:
        context.obj = (path, json_)
        return 0
    if check and md_path is None:
        raise UsageError("--check goes with --md FOLDER.")
    since_utc = _since(since)
    stale = [] if md_path is None else _project(path, md_path, check=check)
    body: dict[str, object] = {} if md_path is None else {"stale": stale}
    imported = _without_campaign(path)
    if imported is not None and (imported or (md_path is not None and html_path is None)):
        # There are projections and files to list, but no night to tell of.
        body |= {"campaign": None, "imported": [asdict(one) for one in imported]}
        _show_imported(imported, html_path, json_=json_)
    else:
        document = _document(path, since_utc, with_evidence=html_path is not None)
        body |= document.as_dict() if json_ else {}
        _show(document, html_path, json_=json_)
    if json_:
        emit(body)
    else:
        for name in stale:
            console().print(f"{name} {'is stale' if check else 'was written anew'}")
    return FAILED if check and stale else 0


@app.command("lever")
def lever_(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(help="Its name, a variant (v0003), a decision (D7) or an identity.")
    ],
    ledger: LedgerOption = Path("ledger.db"),
    json_: JsonOption = False,
) -> int:
    """One lever: variants, blocks, verdicts, what closed or reopened it.

    Example: flywheel report lever hyper.host
    """
    from flywheel.ledger import views
    from flywheel.report import find, lever_page, tables

    path, json_ = _asked(context, ledger, json_)
    declared = cli_levers.known(path)
    with _reading(path) as connection:
        view = views.load(connection)
    lever = find.lever(view, declared, name)
    state = cli_levers.states(path, declared).get(lever.name, "no longer declared")
    page = lever_page.lever_page(view, lever, state)
    if json_:
        emit(page.as_dict())
    else:
        out = console()
        tables.show(lever_page.lines(page, tables.page_of(out)), out)
    return 0


@app.command("tally")
def tally_(
    context: typer.Context,
    ledger: LedgerOption = Path("ledger.db"),
    since: Annotated[
        str | None, typer.Option("--since", help="Only what ended since: 8h, 2d, or an ISO time.")
    ] = None,
    json_: JsonOption = False,
) -> int:
    """Levers by origin, decisions by kind, the gain against the first, the engine's share of time.

    Example: flywheel report tally --since 8h
    """
    from flywheel import best
    from flywheel.ledger import views
    from flywheel.loop.eligible import admit
    from flywheel.loop.order import KINDS
    from flywheel.report import scope, tables, tally
    from flywheel.report.since import moment

    path, json_ = _asked(context, ledger, json_)
    since_utc = None if since is None else moment(since, SystemClock().now())
    with _reading(path) as connection:
        view, effective = views.load(connection), views.effective_configs(connection)
    known = cli_levers.with_declared(path, view)
    ready, _ = admit(view, known, best.fold(view), effective, KINDS)
    found = tally.tally(scope.Scope(view, since_utc), [one.lever for one in ready])
    if json_:
        emit(found.as_dict())
    else:
        out = console()
        tables.show(tally.lines(found, tables.page_of(out)), out)
    return 0


@app.command("run")
def run_(
    context: typer.Context,
    run_id: Annotated[str, typer.Argument(metavar="ID", help="A run, or how its id begins.")],
    ledger: LedgerOption = Path("ledger.db"),
    log: Annotated[bool, typer.Option("--log", help="Print the stored log, unchanged.")] = False,
    config: Annotated[
        bool, typer.Option("--config", help="Print the engine's configuration, to repeat the run.")
    ] = False,
    json_: JsonOption = False,
) -> int:
    """One run: what was asked, how it ended, its numbers and the log lines they stand on.

    Example: flywheel report run r00012 --log
    """
    from flywheel.ledger import views
    from flywheel.ledger.store import log_text
    from flywheel.report import find, run_page, tables

    if log and config:
        raise UsageError("--log and --config print different files; give one of them.")
    path, json_ = _asked(context, ledger, json_)
    with _reading(path) as connection:
        found = find.run(views.load(connection), run_id)
        manifest = views.manifest(connection, found[2].id)
        text = log_text(connection, found[2].id)
        measured = views.measurements(connection, found[2].id)
    if config:
        emit(_config(found[2].id, manifest.get("config")))
        return 0
    if log:
        _print_log(found[2].id, text, json_=json_)
        return 0
    page = run_page.run_page(found, manifest, text, measured)
    if json_:
        emit({**page.as_dict(), "manifest": dict(manifest)})
    else:
        out = console()
        tables.show(run_page.lines(page, tables.page_of(out)), out)
    return 0


@app.command("diff")
def diff_(
    context: typer.Context,
    a: Annotated[
        str,
        typer.Argument(help="best, first, D7, v0003, r00012:A, a JSON file or a fingerprint."),
    ],
    b: Annotated[str, typer.Argument(help="The same, for the other side.")],
    ledger: LedgerOption = Path("ledger.db"),
    json_: JsonOption = False,
) -> int:
    """What differs between two configurations, and what each difference was measured to be worth.

    Example: flywheel report diff first best
    """
    from flywheel.ledger import views
    from flywheel.report import diff_page, tables

    path, json_ = _asked(context, ledger, json_)
    with _reading(path) as connection:
        view = views.load(connection)
        effective = views.effective_configs(connection)
    sides = diff_page.side(view, a), diff_page.side(view, b)
    page = diff_page.diff_page(view, *sides, effective)
    if json_:
        emit(page.as_dict())
    else:
        out = console()
        tables.show(diff_page.lines(page, tables.page_of(out)), out)
    return 0


def _asked(context: typer.Context, ledger: Path, json_: bool) -> tuple[Path, bool]:
    """The ledger and form asked for: `report --ledger X lever N` as `report lever N --ledger X`."""
    before, before_json = context.obj
    source = context.get_parameter_source("ledger")
    given = source is not None and source.name == "COMMANDLINE"
    return (ledger_path(ledger) if given else before), json_ or before_json


@contextmanager
def _reading(path: Path) -> Iterator[Connection]:
    opened = open_ledger(path)
    try:
        with opened.reading() as connection:
            yield connection
    finally:
        opened.close()


def _show(document: Document, html_path: Path | None, *, json_: bool) -> None:
    if html_path is not None:
        from flywheel.report import html

        paper.write(html_path, html.render(document))
    if not json_:
        from flywheel.report import tables

        tables.render(document, console())


def _without_campaign(path: Path) -> tuple[ImportedLine, ...] | None:
    """The imported files of a ledger without a campaign of ours; None of any other ledger."""
    from flywheel.foreign import history
    from flywheel.ledger import views
    from flywheel.report.imported import line

    with _reading(path) as connection:
        if views.newest_campaign(connection) is not None:
            return None
        return tuple(map(line, history.imported(connection)))


def _show_imported(
    imported: Sequence[ImportedLine], html_path: Path | None, *, json_: bool
) -> None:
    if html_path is not None:
        from flywheel.report import html

        paper.write(html_path, html.render_imported(imported))
    if not json_:
        from flywheel.report import tables

        out = console()
        tables.show(tables.imported_lines(imported, tables.page_of(out)), out)


def _since(text: str | None) -> str | None:
    from flywheel.report.since import moment

    return None if text is None else moment(text, SystemClock().now())


def _document(path: Path, since_utc: str | None, *, with_evidence: bool) -> Document:
    from flywheel.report import gather

    opened = open_ledger(path)
    try:
        return gather.gather(
            opened, cli_levers.known(path), first=priority.read(path), since_utc=since_utc,
            with_evidence=with_evidence,
        )
    finally:
        opened.close()


def _project(path: Path, folder: Path, *, check: bool) -> list[str]:
    """Write the projections that are stale, or only name them; returns their names."""
    from flywheel.report import markdown

    with _reading(path) as connection:
        texts = markdown.texts(connection, cli_levers.known(path))
    stale = [name for name, text in texts.items() if paper.stale(folder / name, text)]
    if not check:
        for name in stale:
            paper.write(folder / name, texts[name])
    return stale


def _config(run_id: str, config: object) -> object:
    if not config:
        raise UsageError(f"run {run_id} was imported: it has no configuration to repeat it with.")
    return config


def _print_log(run_id: str, text: str | None, *, json_: bool) -> None:
    if text is None:
        raise UsageError(f"run {run_id} left no log.")
    if json_:
        emit({"run": run_id, "log": text.encode("utf-8", "replace").decode()})
    else:
        sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
        sys.stdout.flush()
