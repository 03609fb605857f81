"""`flywheel levers add`: declare one lever more, a field of the configuration or a patch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from flywheel import declared
from flywheel.cli import levers
from flywheel.cli.terminal import JsonOption, LedgerOption, console, emit, ledger_path
from flywheel.errors import LeverError, UsageError
from flywheel.lever import Lever

# What a patch is expected to bring if nobody says.
GUESS = 0.02


def add(
    name: Annotated[
        str | None, typer.Argument(help="A new name; a patch may go by its file's or branch's.")
    ] = None,
    change: Annotated[
        str | None, typer.Option("--set", help="The one change: FIELD=VALUE.")
    ] = None,
    patch: Annotated[
        str | None,
        typer.Option(
            "--patch", metavar="BRANCH|FILE",
            help="The one change: a diff against the revision that is checked out, or a branch.",
        ),
    ] = None,
    claim: Annotated[
        str | None,
        typer.Option("--claim", help="Why it should be faster; a patch's is its commit's subject."),
    ] = None,
    falsify: Annotated[
        str | None, typer.Option("--falsify", help="What would show that it is not.")
    ] = None,
    predicted_gain: Annotated[
        float | None,
        typer.Option(
            "--predicted-gain",
            help=f"Fraction of time saved: 0.03 is 3 %. For a patch {GUESS:g} unless given.",
        ),
    ] = None,
    ledger: LedgerOption = Path("ledger.db"),
    ceiling: Annotated[
        float | None, typer.Option("--ceiling", help="A bound on the gain, if one is known.")
    ] = None,
    cold: Annotated[
        bool, typer.Option("--cold", help="One engine load cannot hold both values.")
    ] = False,
    slow: Annotated[
        bool, typer.Option("--slow", help="Minutes of building come before every measurement.")
    ] = False,
    share: Annotated[
        float, typer.Option("--share", help="The part of the traffic that it touches.")
    ] = 1.0,
    family: Annotated[str | None, typer.Option("--family", help="Levers of one kind.")] = None,
    needs: Annotated[
        list[str] | None,
        typer.Option("--needs", help="What an incumbent must be: torch, triton or drafts."),
    ] = None,
    json_: JsonOption = False,
) -> int:
    """Declare one lever more, next to the ledger; the next run sees it.

    A patch may touch kernels/*.py, engine/device/*.py and the files of engine/ that compute; never
    tests, oracles, what measures, or the suite (docs/patches.md). Gates come before measuring.

    Example: flywheel levers add threads-4 --set threads=4 --claim "more cores"
    --falsify "time per token does not fall" --predicted-gain 0.05

    Example: flywheel levers add --patch faster-rope
    """
    path = ledger_path(ledger)
    if (change is None) == (patch is None):
        raise UsageError("give --set FIELD=VALUE or --patch BRANCH|FILE, one of the two.")
    body: dict[str, Any] = {
        "ceiling": ceiling, "slow": slow, "needs": tuple(needs or ()), "share": share,
    }  # fmt: skip
    said: dict[str, Any] = {"name": name, "claim": claim, "falsify": falsify,
                            "predicted_gain": predicted_gain, "family": family}
    more: dict[str, Any] = {}
    if patch is None:
        assert change is not None
        made = _field(change, said, body, hot=not cold)
    else:
        made, more = _patch(path, patch, said, body)
    try:
        where = declared.add(path, made, levers.known(path))
    except LeverError as error:
        raise UsageError(f"{error}{_twin(path, made)}") from error
    if json_:
        emit({**levers.lever_json(made, "open"), **more, "file": str(where)})
    else:
        console().print(Text(f"declared {made.name}: {made.label()} in {where}"))
    return 0


def _field(change: str, said: dict[str, Any], body: dict[str, Any], *, hot: bool) -> Lever:
    """A lever of one field of the configuration; it says everything itself."""
    for word in ("name", "claim", "falsify", "predicted_gain"):
        if said[word] is None:
            option = "a name" if word == "name" else f"--{word.replace('_', '-')}"
            raise UsageError(f"a lever of a field needs {option}.")
    field, equals, value = change.partition("=")
    if not equals or not field.strip() or not value.strip():
        raise UsageError(f"--set wants FIELD=VALUE, not {change!r}.")
    changed = {field.strip(): declared.value_of(value.strip())}
    return _lever({**said, **body, "family": said["family"] or "declared", "hot": hot,
                   "kind": "config", "change": changed})  # fmt: skip


def _patch(
    path: Path, given: str, said: dict[str, Any], body: dict[str, Any]
) -> tuple[Lever, dict[str, Any]]:
    """A lever of a patch, and what else is to be told of it. UsageError for one not admitted."""
    from flywheel.patch import offer, source
    from flywheel.patch.repository import Repository

    repository = Repository.of_engine(Path.cwd())
    found = source.read(repository, given, Path.cwd())
    if reasons := source.reasons(repository, found):
        raise UsageError("the patch is not admitted: " + "; ".join(map(str, reasons[:5])) + ".")
    made = _lever({
        **body,
        "name": said["name"] or Path(given).stem,
        "claim": said["claim"] or source.subject(repository, given, Path.cwd()),
        "falsify": said["falsify"] or offer.FALSIFY,
        "predicted_gain": GUESS if said["predicted_gain"] is None else said["predicted_gain"],
        "family": said["family"] or offer.FAMILY, "hot": False,
        "kind": "patch", "change": {"patch": found.sha256},
    })  # fmt: skip
    # The diff first: a lever without one could never be tried.
    kept = source.keep(path, found)
    return made, {"files": list(found.files), "base": found.base, "diff": str(kept)}


def _lever(body: dict[str, Any]) -> Lever:
    try:
        return Lever(**body)
    except LeverError as error:
        raise UsageError(str(error)) from error


def _twin(path: Path, lever: Lever) -> str:
    """What became of the lever that is the same change; empty when nothing has."""
    known = levers.known(path)
    twin = next((x for x in known if x.identity == lever.identity), None)
    state = "open" if twin is None else levers.states(path, known)[twin.name]
    return "" if state == "open" else f" ({state})"
