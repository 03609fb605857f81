"""What an agent that steers the loop may read, and the one thing that it may do. Plain data out."""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from flywheel import priority
from flywheel.box.clock import SystemClock, utc_text
from flywheel.cli import levers as cli_levers
from flywheel.cli.propose import asking_grounds, brief_for
from flywheel.cli.terminal import open_ledger
from flywheel.errors import UsageError

WIDTH = 100
ANY, OPEN, CLOSED = "all", "open", "closed"
SECONDS = 600.0


def report(path: Path, since: str | None = None) -> dict[str, Any]:
    """The report as a person reads it, and the four figures of it as numbers."""
    from flywheel.ledger import views
    from flywheel.report import gather, scope, tables, tally
    from flywheel.report.since import moment

    since_utc = None if since is None else moment(since, SystemClock().now())
    opened = open_ledger(path)
    try:
        with opened.reading() as connection:
            view = views.load(connection)
        if view.campaign is None:
            raise UsageError(f"{path} holds no campaign yet; flywheel run begins one.")
        document = gather.gather(
            opened, cli_levers.with_declared(path, view), first=priority.read(path),
            since_utc=since_utc,
        )
    finally:
        opened.close()
    out = io.StringIO()
    tables.render(document, Console(file=out, width=WIDTH, highlight=False))
    figures = tally.tally(scope.Scope(view, since_utc)).as_dict()
    return {"text": out.getvalue(), "tally": figures, "next": document.next,
            "halts": [halt.reason for halt in document.halts]}  # fmt: skip


def levers(path: Path, state: str = OPEN) -> dict[str, Any]:
    """Levers with their terms, and the reason for which one may not run."""
    if state not in (OPEN, CLOSED, ANY):
        raise UsageError(f"state must be {OPEN}, {CLOSED} or {ANY}, not {state}.")
    known = cli_levers.known(path)
    states = cli_levers.states(path, known)
    found = [cli_levers.lever_json(one, states[one.name]) for one in known]
    if state != ANY:
        found = [one for one in found if (state == OPEN) == one["state"].startswith("open")]
    return {"levers": found}


def findings(path: Path, last: int = 40) -> dict[str, Any]:
    """The newest findings, oldest first, each with its number, date and evidence."""
    from flywheel.ledger import views

    opened = open_ledger(path)
    try:
        with opened.reading() as connection:
            rows = views.load(connection).findings
    finally:
        opened.close()
    return {"findings": [
        {"number": f.number, "date": f.created_utc, "said": f.sentence,
         "decision": f.decision, "evidence": dict(f.evidence)}
        for f in rows[-max(1, last):]
    ]}  # fmt: skip


def brief(path: Path, name: str) -> dict[str, Any]:
    """All that a proposer is told: hardware, profile, levers, ceilings, rules, and the schema."""
    return brief_for(path, name, SECONDS)


def propose(path: Path, offers: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Judge levers by the rules of admission, and record what was said and what was admitted.

    A wrong form is told, and nothing is recorded: it can be put right and sent again.
    """
    from flywheel.propose import gathering, transcript
    from flywheel.propose.admission import judge
    from flywheel.propose.answer import read
    from flywheel.propose.ask import Outcome
    from flywheel.propose.attempt import ANSWERED

    sent = json.dumps({"levers": list(offers)})
    answer = read(sent)
    if answer.errors:
        return {"recorded": False, "errors": list(answer.errors)}
    opened = open_ledger(path, writing=True)
    try:
        with opened.reading() as connection:
            grounds = asking_grounds(connection, path)
        verdicts = judge(answer, grounds, gathering.taker(path, Path.cwd()))
        taken = sum(one.admitted for one in verdicts)
        folder = path.parent / transcript.FOLDER / secrets.token_hex(4)
        folder.mkdir(parents=True)
        told = [one.to_json() for one in verdicts]
        document = {"proposer": name, "sent": json.loads(sent), "verdicts": told}
        digest = transcript.write(folder, document, {})
        where = str((folder / transcript.FILE).relative_to(path.parent))
        detail = f"{taken} of {len(verdicts)} proposed levers admitted"
        found = Outcome(ANSWERED, detail, verdicts, transcript=where, sha256=digest)
        number = gathering.record(opened, name, found, phase=None, now_utc=utc_text())
    finally:
        opened.close()
    return {"recorded": True, "attempt": number, "levers": told}
