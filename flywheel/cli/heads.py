"""`flywheel heads`: the archive of draft heads, what they are worth, and what may leave the box."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from math import isfinite
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text

from flywheel.box.clock import utc_text
from flywheel.cli.terminal import (
    FAILED,
    REFUSED,
    JsonOption,
    LedgerOption,
    console,
    emit,
    ledger_path,
    named_path,
    open_ledger,
)
from flywheel.errors import UsageError
from flywheel.files import read_json

if TYPE_CHECKING:
    from flywheel.heads.ladder import Group, Rung
    from flywheel.heads.numbers import Standing
    from flywheel.ledger.rows import View

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None,
    help="The draft heads: list, ladder, show, verify, add, pack, release.",
)  # fmt: skip
NameArgument = Annotated[str, typer.Argument(help="The head's name.")]
OutOption = Annotated[Path, typer.Option("--out", help="The folder to make.")]


def _view(path: Path) -> View:
    from flywheel.ledger import views

    opened = open_ledger(path)
    try:
        with opened.reading() as connection:
            return views.load(connection)
    finally:
        opened.close()


def _find(view: View, name: str) -> Standing:
    from flywheel.heads.numbers import standings

    found = next((h for h in standings(view) if h.name == name), None)
    if found is None:
        raise UsageError(f"there is no head named {name}; flywheel heads list shows them.")
    return found


@app.command("list")
def list_(ledger: LedgerOption = Path("ledger.db"), json_: JsonOption = False) -> int:
    """Every head that was trained, with its acceptance and its verdict.

    Example: flywheel heads list
    """
    from flywheel.heads.numbers import standings

    heads = standings(_view(ledger_path(ledger)))
    if json_:
        emit({"heads": [_summary(head) for head in heads]})
        return 0
    table = Table.grid(padding=(0, 2))
    for head in heads:
        mine = head.measured
        tau = (
            ""
            if mine is None
            else (f"tau {float(mine.candidate.suite):.3f} against {float(mine.before.suite):.3f}")
        )
        table.add_row(head.name, Text(head.status), tau)
    console().print(table if heads else "no head was trained yet")
    return 0


@app.command()
def ladder(ledger: LedgerOption = Path("ledger.db"), json_: JsonOption = False) -> int:
    """Every arm with its verdict, the best one by category, and what each stage took.

    Example: flywheel heads ladder
    """
    from flywheel.heads import ladder as rungs
    from flywheel.heads.numbers import standings

    view = _view(ledger_path(ledger))
    found = rungs.ladder(view)
    best = next((h.measured for h in standings(view) if found and h.name == found[0].name), None)
    parts = {} if best is None else {
        "suite": rungs.groups(best, held_out=False), "hold-out": rungs.groups(best, held_out=True),
    }  # fmt: skip
    times = rungs.stage_seconds(view)
    if json_:
        emit({
            "arms": [_plain(rung) for rung in found],
            "best": {name: [_plain(group) for group in lines] for name, lines in parts.items()},
            "stage_seconds": {name: list(taken) for name, taken in times.items()},
        })  # fmt: skip
        return 0
    out = console()
    if not found:
        out.print("no head was measured yet")
        return 0
    out.print(_arms(found))
    for name, lines in parts.items():
        if lines:
            out.print(_by_category(f"{found[0].name}, {name}", lines))
    out.print(_stages(times))
    return 0


def _arms(found: Sequence[Rung]) -> Table:
    from flywheel.heads.ladder import percent

    several = len({rung.suite for rung in found}) > 1
    # A figure or a verdict that is cut off says another.
    table = Table(
        Column("arm", overflow="fold"), Column("tau", no_wrap=True),
        _folding("gain over its incumbent"), _folding("could see"), _folding("hold-out"),
        _folding("verdict"), *([_folding("suite")] if several else []), box=None,
    )  # fmt: skip
    for rung in found:
        held = "" if rung.held_out is None or rung.incumbent_held_out is None else (
            f"{rung.held_out:.3f} ({rung.held_out - rung.incumbent_held_out:+.3f})"
        )
        least = rung.least_rise_percent
        table.add_row(
            rung.name, f"{rung.tau:.3f}", Text(percent(rung.gain)),
            "" if least is None else f"{least:.1f} %", held, rung.status,
            *([Text(rung.suite)] if several else []),
        )  # fmt: skip
    return table


def _folding(name: str) -> Column:
    return Column(name, overflow="fold")


def _by_category(title: str, lines: Sequence[Group]) -> Table:
    from flywheel.heads.ladder import percent

    table = Table(
        _folding(title), _folding("prompts"), Column("tau", no_wrap=True),
        Column("incumbent", no_wrap=True), _folding("gain"), box=None,
    )  # fmt: skip
    for line in lines:
        table.add_row(
            line.name, str(line.prompts), f"{line.tau:.3f}", f"{line.before:.3f}",
            Text(percent(line.gain)),
        )  # fmt: skip
    return table


def _stages(times: Mapping[str, Sequence[float]]) -> Table:
    table = Table("stage", "times", "seconds, median", box=None)
    for name, taken in times.items():
        table.add_row(name, str(len(taken)), f"{median(taken):.1f}")
    return table


def _plain(row: Any) -> dict[str, Any]:
    """A row as JSON; a band without an end has none there."""
    body = asdict(row)
    gain = body.pop("gain")
    return body | {
        "log_gain": {
            k: v if not isinstance(v, float) or isfinite(v) else None for k, v in gain.items()
        }
    }


@app.command()
def show(
    name: NameArgument, ledger: LedgerOption = Path("ledger.db"), json_: JsonOption = False
) -> int:
    """One head: its model card, from the ledger and the archive.

    Example: flywheel heads show loss.ce-v0012
    """
    path = ledger_path(ledger)
    view = _view(path)
    head = _find(view, name)
    if json_:
        emit(_measured(view, head))
    else:
        console().print(Text(_card(path, view, head)), soft_wrap=True)
    return 0


@app.command()
def verify(
    full: Annotated[bool, typer.Option("--full", help="Hash every byte again.")] = False,
    ledger: LedgerOption = Path("ledger.db"),
    json_: JsonOption = False,
) -> int:
    """Is every head still there, whole, as it was archived?

    Example: flywheel heads verify --full
    """
    from flywheel.heads import archive

    path = ledger_path(ledger)
    view, root = _view(path), archive.root_of(path)
    wrong = [p for row in view.heads for p in archive.problems(root, row, full=full)]
    wrong += archive.strangers(root, {row.name for row in view.heads})
    if json_:
        emit({"heads": len(view.heads), "full": full, "problems": wrong})
    else:
        out = console()
        for sentence in wrong:
            out.print(Text(sentence))
        out.print(f"{len(view.heads)} heads, {'every byte hashed' if full else 'sizes and cards'}: "
                  f"{'whole' if not wrong else f'{len(wrong)} problems'}")  # fmt: skip
    return FAILED if wrong else 0


@app.command()
def add(
    name: NameArgument,
    folder: Annotated[Path, typer.Argument(help="A trained head: what engine.heads train left.")],
    log: Annotated[Path, typer.Option("--log", help="The training's log, as it was written.")],
    ledger: LedgerOption = Path("ledger.db"),
    json_: JsonOption = False,
) -> int:
    """Archive a head that was trained by hand.

    Example: flywheel heads add mine out/arm --log out/arm/train.log
    """
    from flywheel.heads import archive, record

    metrics = read_json(folder / archive.METRICS)
    if metrics is None:
        raise UsageError(f"{folder} holds no readable {archive.METRICS}.")
    path = ledger_path(ledger)
    opened = open_ledger(path, writing=True)
    try:
        files = {
            archive.WEIGHTS: folder / archive.WEIGHTS, archive.METRICS: folder / archive.METRICS,
            archive.LOG: log,
        }  # fmt: skip
        card = record.keep(
            opened, archive.root_of(path), name, files, record.about(metrics), now_utc=utc_text()
        )
    finally:
        opened.close()
    if json_:
        emit(card)
    else:
        console().print(Text(f"archived {name}: {archive.root_of(path) / name}"))
    return 0


@app.command()
def pack(
    name: NameArgument,
    out: OutOption,
    ledger: LedgerOption = Path("ledger.db"),
    json_: JsonOption = False,
) -> int:
    """A folder with everything that a head is, its model card and SHA256SUMS.

    Example: flywheel heads pack loss.ce-v0012 --out upload
    """
    path = ledger_path(ledger)
    view = _view(path)
    return _pack(path, view, _find(view, name), out, json_=json_)


@app.command()
def release(
    name: NameArgument,
    out: OutOption,
    ledger: LedgerOption = Path("ledger.db"),
    json_: JsonOption = False,
) -> int:
    """Pack a head that clears every floor; refuse any other with the exact shortfalls.

    Example: flywheel heads release loss.ce-v0012 --out upload
    """
    from flywheel.heads.gates import shortfalls

    path = ledger_path(ledger)
    view = _view(path)
    head = _find(view, name)
    if missing := shortfalls(view, head):
        if json_:
            emit({"name": name, "released": False, "shortfalls": list(missing)})
        else:
            for sentence in missing:
                console().print(Text(f"not released: {sentence}"))
        return REFUSED
    return _pack(path, view, head, out, json_=json_)


def _pack(path: Path, view: View, head: Standing, out: Path, *, json_: bool) -> int:
    from flywheel.heads import archive, pack as packing

    made = packing.pack(
        archive.root_of(path), head.name, named_path(out, "--out"),
        readme=_card(path, view, head), measured=_measured(view, head),
    )  # fmt: skip
    if json_:
        emit({"name": head.name, "folder": str(made)})
    else:
        console().print(Text(f"packed {head.name}: {made}"))
    return 0


def _card(path: Path, view: View, head: Standing) -> str:
    from flywheel.heads import archive, model_card
    from flywheel.heads.gates import shortfalls
    from flywheel.heads.numbers import stock_beside

    stock = None if head.measured is None else stock_beside(view, head.measured)
    card = archive.card_of(archive.root_of(path), head.name)
    return model_card.render(head, card, stock, shortfalls(view, head))


def _summary(head: Standing) -> dict[str, Any]:
    mine = head.measured
    return {
        "name": head.name, "status": head.status,
        "decision": None if head.decision is None else head.decision.number,
        "tau": None if mine is None else float(mine.candidate.suite),
        "incumbent": None if mine is None else mine.incumbent,
        "incumbent_tau": None if mine is None else float(mine.before.suite),
    }  # fmt: skip


def _measured(view: View, head: Standing) -> dict[str, Any]:
    from flywheel.heads.gates import shortfalls

    mine = head.measured
    body = _summary(head) | {"shortfalls": list(shortfalls(view, head))}
    if mine is None:
        return body
    ruler = view.rulers[mine.block.ruler_id or 0]
    return body | {
        "ruler": ruler.as_dict(), "source_sha256": mine.block.source_sha256,
        "block": mine.block.id,
        "categories": _floats(mine.candidate.categories),
        "incumbent_categories": _floats(mine.before.categories),
        "held_out": _float(mine.candidate.held_out),
        "incumbent_held_out": _float(mine.before.held_out),
        "prompts": [
            {"prompt": r.prompt, "category": r.category, "held_out": r.held_out, "made": r.made,
             "rounds": r.candidate, "incumbent_rounds": r.incumbent}
            for r in mine.rows
        ],
    }  # fmt: skip


def _floats(taus: Any) -> dict[str, float]:
    return {name: float(tau) for name, tau in sorted(taus.items())}


def _float(tau: Fraction | None) -> float | None:
    return None if tau is None else float(tau)
