"""`flywheel levers propose | attempts`: ask a proposer by hand, and look at what was said."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from flywheel.box.clock import SystemClock, count, span_text, utc_text
from flywheel.cli import levers
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

    from flywheel.ledger.rows import AttemptRow
    from flywheel.propose.admission import Grounds
    from flywheel.propose.ask import Outcome
    from flywheel.propose.attempt import Terms
    from flywheel.propose.proposer import Proposer

ATTEMPTS, TIMEOUT_S = 12, 600.0
ProposersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--proposer",
        help="Asked for levers when the queue and the profile give no more: [NAME=]COMMAND, or "
        "'scripted FILE', 'openai ...', 'agent ...'; may be repeated.",
    ),
]
AttemptsOption = Annotated[
    int,
    typer.Option("--proposer-attempts", min=1, max=1000, help="So often a campaign, each of them."),
]
TimeoutOption = Annotated[
    float,
    typer.Option("--proposer-timeout-s", min=1, max=86_400, help="Seconds that it may take."),
]
NetworkOption = Annotated[
    bool, typer.Option("--proposer-network", help="Let proposers use the network.")
]
EnvironmentOption = Annotated[
    list[str] | None,
    typer.Option("--proposer-env", help="A variable to hand over, by its name; may be repeated."),
]


def terms(
    attempts: int, timeout_s: float, network: bool, environment: list[str] | None
) -> Terms:
    """The limits of asking, from the options; UsageError for a variable that is not set."""
    from flywheel.propose.attempt import Terms

    for name in environment or ():
        if name not in os.environ:
            raise UsageError(f"--proposer-env names {name}, which is not set.")
    return Terms(
        attempts=attempts, timeout_s=timeout_s, network=network,
        environment=tuple(environment or ()),
    )  # fmt: skip


def propose(
    proposer: Annotated[str, typer.Option("--proposer", help="[NAME=]COMMAND to ask.")],
    ledger: LedgerOption = Path("ledger.db"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Judge the answer and record nothing.")
    ] = False,
    show_brief: Annotated[
        bool, typer.Option("--brief", help="Print the brief and ask nobody.")
    ] = False,
    timeout_s: TimeoutOption = TIMEOUT_S,
    network: NetworkOption = False,
    environment: EnvironmentOption = None,
    json_: JsonOption = False,
) -> int:
    """Ask a proposer for levers now; those that are admitted wait for the next run.

    Example: flywheel levers propose --proposer "scripted ideas.json" --dry-run
    """
    from flywheel.propose.proposer import parse

    path, asked = ledger_path(ledger), parse(proposer)
    wanted = terms(1, timeout_s, network, environment)
    if show_brief:
        emit(brief_for(path, asked.name, timeout_s))
        return 0
    found, number = _ask(path, asked, wanted, dry_run=dry_run)
    if json_:
        emit({"attempt": number, **outcome_json(found)})
    else:
        _print(found, asked, number)
    return 0 if found.outcome == "answered" else FAILED


def brief_for(path: Path, proposer: str, seconds: float) -> dict[str, Any]:
    """The brief that a proposer would be given now; UsageError before the first campaign."""
    from flywheel.propose import gathering

    opened = open_ledger(path)
    try:
        with opened.reading() as connection:
            grounds = asking_grounds(connection, path)
            return gathering.brief(connection, grounds, proposer, seconds, path)
    finally:
        opened.close()


def asking_grounds(connection: Connection, path: Path) -> Grounds:
    """What admission looks at now; UsageError before the first campaign."""
    from flywheel.cli.commands import FIELDS_COMMAND, FIELDS_VARIABLE, command_from
    from flywheel.ledger import views
    from flywheel.loop.order import KINDS
    from flywheel.propose import gathering

    view = views.load(connection)
    if view.campaign is None:
        raise UsageError(f"{path} holds no campaign yet; flywheel run begins one.")
    fields = gathering.fields(command_from(FIELDS_VARIABLE, FIELDS_COMMAND), Path.cwd())
    return gathering.grounds(connection, levers.with_declared(path, view), fields, KINDS, path)


def _ask(
    path: Path, asked: Proposer, wanted: Terms, *, dry_run: bool
) -> tuple[Outcome, int | None]:
    """Ask, and record it unless it is a rehearsal; the attempt's number."""
    from flywheel.propose import gathering
    from flywheel.propose.ask import ask

    opened = open_ledger(path, writing=not dry_run)
    try:
        with opened.reading() as connection:
            grounds = asking_grounds(connection, path)
            brief = gathering.brief(connection, grounds, asked.name, wanted.timeout_s, path)
        with tempfile.TemporaryDirectory(prefix="flywheel-") as elsewhere:
            beside = Path(elsewhere) / path.name if dry_run else path
            found = ask(
                asked, brief, grounds, wanted, beside, clock=SystemClock(),
                take_patch=gathering.taker(beside, Path.cwd()),
            )
        if dry_run:
            return found, None
        number = gathering.record(opened, asked.name, found, phase=None, now_utc=utc_text())
        return found, number
    finally:
        opened.close()


def outcome_json(found: Outcome) -> dict[str, Any]:
    """What became of an attempt, as JSON."""
    return {
        "outcome": found.outcome, "detail": found.detail, "wall_s": round(found.wall_s, 3),
        "levers": [one.to_json() for one in found.verdicts], "cage": list(found.cage),
        "retry_after_s": found.retry_s, "usage": dict(found.usage),
        "transcript": found.transcript, "sha256": found.sha256,
    }  # fmt: skip


def _print(found: Outcome, asked: Proposer, number: int | None) -> None:
    out = console()
    which = "a rehearsal" if number is None else f"attempt {number}"
    out.print(Text(f"{asked.name}, {which}: {found.outcome}, {found.detail}"))
    for one in found.verdicts:
        state = "admitted" if one.admitted else f"refused: {one.reason}"
        out.print(Text(f"  {one.name}: {state}"))
    held = ", ".join(found.cage) or "nothing: this kernel allows no cage"
    out.print(Text(f"it was held by: {held}"))
    if number is not None:
        out.print(Text(f"transcript: {found.transcript}"))


def attempts(
    number: Annotated[
        int | None, typer.Argument(help="One attempt: every lever that it proposed.")
    ] = None,
    ledger: LedgerOption = Path("ledger.db"),
    json_: JsonOption = False,
) -> int:
    """Every time that a proposer was asked, what came of it, and whether its transcript is whole.

    Example: flywheel levers attempts 3
    """
    from flywheel.ledger import attempts as rows

    path = ledger_path(ledger)
    opened = open_ledger(path)
    try:
        with opened.reading() as connection:
            found = rows.made(connection)
    finally:
        opened.close()
    if number is not None:
        found = tuple(one for one in found if one.number == number)
        if not found:
            raise UsageError(f"there is no attempt {number}; flywheel levers attempts lists them.")
    told = [_attempt_json(path, one) for one in found]
    if json_:
        emit({"attempts": told})
        return 0
    out = console()
    if not told:
        out.print("no proposer was asked yet")
    for row, body in zip(found, told, strict=True):
        out.print(Text(_line(row, body["state"])))
        for one in row.verdicts if number is not None else ():
            state = "admitted" if one["admitted"] else f"refused: {one['reason']}"
            out.print(Text(f"  {one['name']} ({one['kind'] or 'no kind'}): {state}"))
    return 0


def _line(row: AttemptRow, state: str) -> str:
    asked = "by hand" if row.phase is None else f"in phase {row.phase}"
    return (
        f"{row.number}  {row.created_utc}  {row.proposer}, {asked}: {row.outcome} in "
        f"{span_text(row.wall_s)}, {row.detail}; {count(row.admitted, 'lever')} admitted, "
        f"{row.refused} refused; transcript {state}: {row.transcript}"
    )


def _attempt_json(path: Path, row: AttemptRow) -> dict[str, Any]:
    from flywheel.propose import transcript

    return {
        "number": row.number, "proposer": row.proposer, "phase": row.phase,
        "outcome": row.outcome, "detail": row.detail, "retry_after_s": row.retry_s,
        "admitted": row.admitted, "refused": row.refused, "levers": list(row.verdicts),
        "usage": dict(row.usage), "transcript": row.transcript, "sha256": row.sha256,
        "state": transcript.state(path, row), "wall_s": row.wall_s,
        "created_utc": row.created_utc,
    }  # fmt: skip
