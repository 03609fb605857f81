"""`flywheel levers`: what may be tried, what was, and how to declare one more."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

import experiments
from flywheel import declared
from flywheel.cli import paper
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
from flywheel.lever import Lever

if TYPE_CHECKING:
    from flywheel.ledger.rows import View

NARROW = 84

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None,
    help="The queue: what may be tried, in which order, and why.",
)


def known(ledger: Path) -> tuple[Lever, ...]:
    """Every lever: the repository's, this box's own, then those that came by themselves."""
    return with_declared(ledger, _history(ledger)[0] if ledger.exists() else None)


def with_declared(ledger: Path, view: View | None) -> tuple[Lever, ...]:
    """As `known`, for a history that was read already; None: there is none yet."""
    found = [*experiments.discover(), *declared.read(ledger)]
    proposed_sweeps = () if view is None else tuple(row.sweep for row in view.sweeps)
    if sweeps := (*declared.sweeps(ledger), *proposed_sweeps):
        # Only a search needs it, and it takes its time to load.
        from flywheel.loop.sweeping import expand

        found += expand(sweeps, view)
    taken = {lever.identity for lever in found} | {lever.name for lever in found}
    proposed = () if view is None else tuple(row.lever for row in view.proposals)
    return (*found, *(x for x in proposed if not taken & {x.identity, x.name}))


def named(ledger: Path, name: str) -> Lever:
    """The declared lever of that name; UsageError when there is none."""
    for lever in known(ledger):
        if lever.name == name:
            return lever
    raise UsageError(f"there is no lever named {name}; flywheel levers list shows them.")


def _history(path: Path) -> tuple[View, dict[str, Mapping[str, Any]]]:
    """The ledger's history, and what the engine made of each configuration asked for."""
    from flywheel.ledger import views

    opened = open_ledger(path)
    try:
        with opened.reading() as connection:
            return views.load(connection), views.effective_configs(connection)
    finally:
        opened.close()


def states(path: Path, levers: tuple[Lever, ...]) -> dict[str, str]:
    """Lever name to its state: open, or the sentence that says why it may not run."""
    if not path.exists():
        return {lever.name: "open" for lever in levers}
    from flywheel import best
    from flywheel.loop.eligible import admit
    from flywheel.loop.order import KINDS

    view, effective = _history(path)
    if view.campaign is None:
        return {lever.name: "open" for lever in levers}
    ready, refused = admit(view, levers, best.fold(view), effective, KINDS)
    return {
        **{one.lever.name: f"open{one.note}" for one in ready},
        **{one.lever.name: one.reason for one in refused},
    }


def lever_json(lever: Lever, state: str) -> dict[str, Any]:
    """A lever as JSON."""
    return {
        "name": lever.name,
        "kind": lever.kind,
        "change": dict(lever.change),
        "label": lever.label(),
        "claim": lever.claim,
        "falsify": lever.falsify,
        "predicted_gain": lever.predicted_gain,
        "ceiling": lever.ceiling,
        "hot": lever.hot,
        "family": lever.family,
        "metric": lever.metric,
        "slow": lever.slow,
        "share": lever.share,
        "needs": list(lever.needs),
        "identity": lever.identity,
        "state": state,
    }


def _told(path: Path, lever: Lever) -> dict[str, Any]:
    """What was said of a lever, and why it was chosen whenever it was, as JSON."""
    from flywheel.ledger import steering

    if not path.exists():
        return {"said": [], "chosen": []}
    opened = open_ledger(path)
    try:
        with opened.reading() as connection:
            said = [s for s in steering.said(connection) if s.lever_identity == lever.identity]
            chosen = steering.choices(connection, lever.identity)
    finally:
        opened.close()
    return {
        "said": [{"word": s.word, "ceiling": s.ceiling, "why": s.why, "when": s.created_utc}
                 for s in said],
        "chosen": [{"block": c.block_id, "why": c.why, "over": dict(c.runners_up)}
                   for c in chosen],
    }  # fmt: skip


@app.command("list")
def list_(ledger: LedgerOption = Path("ledger.db"), json_: JsonOption = False) -> int:
    """Every declared lever and whether it may run.

    Example: flywheel levers list
    """
    path = ledger_path(ledger)
    levers = known(path)
    state = states(path, levers)
    if json_:
        emit({"levers": [lever_json(lever, state[lever.name]) for lever in levers]})
        return 0
    out = console()
    table = Table.grid(padding=(0, 2))
    for lever in levers:
        predicted = f"predicted {lever.predicted_gain * 100:.3g} %"
        if out.width < NARROW:
            # Four columns would be squeezed to a few letters each.
            out.print(Text(f"{lever.name}  {predicted}"))
            out.print(Padding(Text(f"{lever.label()}: {state[lever.name]}"), (0, 0, 0, 2)))
        else:
            table.add_row(lever.name, Text(lever.label()), predicted, Text(state[lever.name]))
    if not levers:
        out.print("no lever is declared")
    elif out.width >= NARROW:
        out.print(table)
    return 0


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="The lever's name.")],
    ledger: LedgerOption = Path("ledger.db"),
    json_: JsonOption = False,
) -> int:
    """One lever: its claim, what would falsify it, and what became of it.

    Example: flywheel levers show threads.2
    """
    path = ledger_path(ledger)
    lever = named(path, name)
    body = {**lever_json(lever, states(path, known(path))[name]), **_told(path, lever)}
    if json_:
        emit(body)
        return 0
    table = Table.grid(padding=(0, 2))
    for key, value in body.items():
        for one in value if key in ("said", "chosen") else (value,):
            table.add_row(Text(key, style="dim"), Text(_words(one)))
    console().print(table)
    return 0


def _words(value: Any) -> str:
    """A value of the page in one line."""
    if not isinstance(value, dict):
        return str(value)
    return ", ".join(f"{key} {_words(one)}" for key, one in value.items() if one is not None)


@app.command()
def write(
    ledger: LedgerOption = Path("ledger.db"),
    path: Annotated[Path, typer.Option("--path", help="The file to write.")] = Path("LEVERS.md"),
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail when the file is stale.")
    ] = False,
    json_: JsonOption = False,
) -> int:
    """Generate LEVERS.md from the ledger and the declarations.

    Example: flywheel levers write --check
    """
    from flywheel.report import levers_md

    ledger_file = ledger_path(ledger)
    view, effective = _history(ledger_file)
    text = levers_md.render(view, known(ledger_file), levers_md.resolved(view, effective))
    stale = paper.stale(path, text)
    if stale and not check:
        paper.write(path, text)
    if json_:
        emit({"path": str(path), "stale": stale, "written": stale and not check})
    else:
        words = "is stale" if check else "was written anew"
        console().print(Text(f"{path} {words if stale else 'is up to date'}"))
    return FAILED if stale and check else 0
