"""`flywheel import`: history that another project measured, under a ruler of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.text import Text

from flywheel.box.clock import count
from flywheel.cli.terminal import FAILED, JsonOption, LedgerOption, console, emit, ledger_path
from flywheel.errors import UsageError

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from flywheel.foreign.history import Imported
    from flywheel.foreign.reading import Reading
    from flywheel.ruler import Measure

_Answer = TypeVar("_Answer")

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="History that another project measured: read, checked, kept apart from ours.",
)

DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Read and judge the files; leave the ledger as it is.")
]


@app.command("dsv4-log")
def dsv4_log(
    files: Annotated[list[Path], typer.Argument(help="Decode, eval or memory guard logs.")],
    ledger: LedgerOption = Path("ledger.db"),
    dry_run: DryRunOption = False,
    json_: JsonOption = False,
) -> int:
    """Read the decode, eval and guard logs of the CUDA engine for the same model.

    Each file is stored once, whole or not at all; one that must not count is stored with its reason
    and owns no number. Exit code 1 when any file was refused.

    Example: flywheel import dsv4-log evidence/*.log --ledger foreign.db
    """
    from flywheel.foreign.reading import read

    return _import(files, read, ledger_path(ledger), dry_run=dry_run, json_=json_)


@app.command("arms")
def arms_(
    file: Annotated[Path, typer.Argument(help="A JSON table of draft heads.")],
    ledger: LedgerOption = Path("ledger.db"),
    dry_run: DryRunOption = False,
    json_: JsonOption = False,
) -> int:
    """Read a table of draft heads and judge every one again by our gates.

    Twice: against the incumbents as they stood, and as the rule alone would have made them.

    Example: flywheel import arms arms.json --ledger foreign.db
    """
    from flywheel.foreign.reading import read_arms

    return _import([file], read_arms, ledger_path(ledger), dry_run=dry_run, json_=json_)


@app.command("list")
def list_(ledger: LedgerOption = Path("ledger.db"), json_: JsonOption = False) -> int:
    """What was imported, with the reason against each file that does not count.

    Example: flywheel import list --ledger foreign.db
    """
    from flywheel.foreign.history import imported
    from flywheel.report.imported import line

    found = _reading(ledger_path(ledger), imported)
    if json_:
        emit([_told(one) for one in found])
        return 0
    for one in map(line, found):
        label = one.ruler or one.kind
        console().print(Text(f"{one.sha256[:8]}  {one.name}  [{label}]  {one.said}"))
    return 0


@app.command()
def compare(
    left: Annotated[str, typer.Argument(help="An imported file, its hash, or a run of ours.")],
    right: Annotated[str, typer.Argument(help="What to compare it with.")],
    ledger: LedgerOption = Path("ledger.db"),
    json_: JsonOption = False,
) -> int:
    """Two imported logs side by side; refused, naming the field, across rulers.

    Example: flywheel import compare baseline.log s3.log --ledger foreign.db
    """

    def both(connection: Connection) -> tuple[dict[str, Fraction], dict[str, Fraction]]:
        from flywheel import ruler

        ruler.compare(_measure(connection, left), _measure(connection, right))
        return _by_category(connection, left), _by_category(connection, right)

    one, other = _reading(ledger_path(ledger), both)
    rows = [(c, float(one[c]), float(other[c]), float(other[c] / one[c]) - 1) for c in one]
    if json_:
        emit({"is_a_tau": False, "left": left, "right": right, "categories": [
            {"category": c, "left": a, "right": b, "change": d} for c, a, b, d in rows]})
        return 0
    out = console()
    out.print(Text(f"left   {left}\nright  {right}"))
    out.print(Text(f"{'category':16} {'left':>7} {'right':>7}  {'change':>8}", style="bold"))
    for name, a, b, change in rows:
        out.print(f"{name:16} {a:7.3f} {b:7.3f}  {change * 100:+6.1f} %")
    out.print("tokens per forward, past the end of sequence on most prompts: not a tau")
    return 0


@app.command()
def floors(
    candidate: Annotated[str, typer.Argument(help="The imported log of the head to release.")],
    stock: Annotated[str, typer.Option("--stock", help="The log of the head it began from.")],
    incumbent: Annotated[str, typer.Option("--incumbent", help="The log of the head in use.")],
    ledger: LedgerOption = Path("ledger.db"),
    json_: JsonOption = False,
) -> int:
    """May a head be released? Its categories against their floors. Exit code 1 when not.

    Example: flywheel import floors s3.log --stock baseline.log --incumbent s1.log
    """
    from flywheel import release, ruler

    def three(connection: Connection) -> list[dict[str, Fraction]]:
        for other in (stock, incumbent):
            ruler.compare(_measure(connection, candidate), _measure(connection, other))
        return [_by_category(connection, name) for name in (candidate, stock, incumbent)]

    kept = release.floors(*_reading(ledger_path(ledger), three))
    if json_:
        emit({"released": all(f.kept for f in kept), "floors": [
            {"category": f.category, "kind": f.kind, "value": float(f.candidate),
             "least": float(f.least), "shortfall": float(f.shortfall), "kept": f.kept}
            for f in kept]})
    else:
        for floor in kept:
            console().print(Text(floor.sentence(), style="" if floor.kept else "red"))
    return 0 if all(f.kept for f in kept) else FAILED


def _import(
    files: Sequence[Path], read: Callable[[Path], Reading], path: Path, *, dry_run: bool,
    json_: bool,
) -> int:  # fmt: skip
    from flywheel.foreign.source import opened

    files = [file.expanduser() for file in files]
    # A name that was mistyped is told before anything is stored, not after the half of it.
    for file in files:
        with opened(file):
            pass
    results = []
    for file in files:
        found = read(file)
        stored = "dry run" if dry_run else _store(path, found)
        results.append(_result(file, found, stored))
        if not json_:
            _print(results[-1])
    if json_:
        emit({"ledger": None if dry_run else str(path), "files": results})
    return 0 if all(r["outcome"] == "ok" for r in results) else FAILED


def _store(path: Path, found: Reading) -> str:
    from flywheel.box.clock import utc_text
    from flywheel.foreign import history
    from flywheel.ledger.store import Ledger

    opened = Ledger.open(path)
    try:
        with opened.transaction() as writer:
            return history.append(writer, found, utc_text())
    finally:
        opened.close()


def _result(file: Path, found: Reading, stored: str) -> dict[str, Any]:
    ruler = found.ruler()
    told: dict[str, Any] = {
        "file": str(file),
        "sha256": found.source.sha256,
        "kind": found.kind,
        "outcome": "ok" if found.ok else "refused",
        "ledger": stored,
        "reasons": [{"code": r.code, "detail": r.detail, "line": r.line} for r in found.reasons],
        "ruler": None if ruler is None else {"label": ruler.label, **ruler.as_dict()},
        "facts": found.facts(),
        "measurements": len(found.measurements()),
    }
    return {**told, **_judged(found)}


def _judged(found: Reading) -> dict[str, Any]:
    """A table's verdicts and floors; nothing for a log."""
    from flywheel.foreign import arms

    table = found.log
    if not isinstance(table, arms.Table):
        return {}
    return {
        "verdicts": [
            {"world": world, "arm": v.arm.name, "stated": v.arm.stated, "ending": v.ending,
             "incumbent": v.incumbent or None, "sentence": v.said}
            for world in (arms.AS_IT_STOOD, arms.BY_THE_RULE) for v in arms.judge(table, world)
        ],
        "floors": {name: [f.sentence() for f in kept] for name, kept in arms.floors(table).items()},
    }  # fmt: skip


def _print(result: dict[str, Any]) -> None:
    from flywheel.report.imported import summary

    out = console()
    name = Path(result["file"]).name
    if result["outcome"] == "refused":
        first, *more = [f"{r['code']}: {r['detail']}" for r in result["reasons"]]
        also = f" (and {count(len(more), 'more reason')})" if more else ""
        out.print(Text(f"{name}  refused ({result['ledger']})  {first}{also}", style="red"))
        return
    said = summary(result["facts"], result["kind"])
    out.print(Text(f"{name}  ok ({result['ledger']})  {said}"))
    for verdict in result.get("verdicts", ()):
        out.print(Text(f"  {verdict['world']:13} {verdict['arm']}: {verdict['sentence']}"))
    for head, kept in result.get("floors", {}).items():
        for sentence in kept:
            out.print(Text(f"  floor of {head}: {sentence}"))


def _told(one: Imported) -> dict[str, Any]:
    return {
        "name": one.name, "sha256": one.sha256, "kind": one.kind, "outcome": one.outcome,
        "reason": None if one.refusal is None else str(one.refusal),
        "ruler": None if one.ruler is None else one.ruler.label, "reader": one.reader,
        "imported_utc": one.created_utc, "facts": dict(one.facts),
    }  # fmt: skip


def _reading(path: Path, ask: Callable[[Connection], _Answer]) -> _Answer:
    from flywheel.ledger.store import Ledger

    if not path.exists():
        raise UsageError(f"there is no ledger at {path}; flywheel import dsv4-log makes one.")
    opened = Ledger.read(path)
    try:
        with opened.reading() as connection:
            return ask(connection)
    finally:
        opened.close()


def _measure(connection: Connection, name: str) -> Measure:
    """The ruler of an imported log, or of one of our own runs."""
    from flywheel.foreign.history import named
    from flywheel.ledger import views

    view = views.load(connection)
    for block in view.blocks():
        if block.ruler_id is not None and name in {run.id for run in block.runs}:
            return view.rulers[block.ruler_id]
    found = named(connection, name)
    if found.ruler is None:
        why = found.refusal or "it holds no measured prompts"
        raise UsageError(f"{found.name} has no numbers to compare: {why}.")
    return found.ruler


def _by_category(connection: Connection, name: str) -> dict[str, Fraction]:
    from flywheel.foreign import history
    from flywheel.foreign.ruler import METRIC

    try:
        found = history.named(connection, name)
    except UsageError:
        raise UsageError(f"{name} is a run of ours; see flywheel report run {name}.") from None
    return {
        m.category: Fraction(m.numerator, m.denominator)
        for m in history.measurements(connection, found.reading)
        if m.metric == METRIC
    }
