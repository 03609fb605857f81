"""What asking needs of the ledger and the box, and the record of what came of it: the effects."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from flywheel import best, declared
from flywheel.box import host
from flywheel.errors import LeverError
from flywheel.ledger import attempts, halts, phases, views
from flywheel.ledger.store import Ledger
from flywheel.lever import Lever
from flywheel.patch import offer
from flywheel.propose import brief as briefs
from flywheel.propose.admission import Grounds, TakePatch
from flywheel.propose.answer import Patch
from flywheel.propose.ask import Outcome

FIELDS_S = 60.0
# More than a night could try would only bury the queue.
MOST_WAITING = 60
TAMPERED = "proposer_tampered"


def taker(ledger: Path, cwd: Path) -> TakePatch:
    """What makes a lever of a patch beside this ledger, against the code that is run in `cwd`."""

    def take(patch: Patch) -> Lever:
        made = offer.taken(
            ledger, cwd, patch.diff, name=patch.name, claim=patch.claim,
            falsify=patch.falsify, gain=patch.predicted_gain,
        )  # fmt: skip
        return replace(made, ceiling=patch.ceiling)

    return take


def fields(command: Sequence[str], cwd: Path) -> dict[str, dict[str, Any]]:
    """Every field of the engine, as the command prints them; empty where it cannot say."""
    if not command:
        return {}
    try:
        told = json.loads(subprocess.run(
            [*command, "--json"], cwd=cwd, capture_output=True, timeout=FIELDS_S, check=True,
        ).stdout)  # fmt: skip
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    usable = isinstance(told, dict) and all(isinstance(one, dict) for one in told.values())
    return told if usable else {}


def grounds(
    connection: Connection,
    levers: Sequence[Lever],
    fields: Mapping[str, Mapping[str, Any]],
    kinds: Collection[str],
    ledger: Path | None = None,
) -> Grounds:
    """What admission looks at; `levers` are all that may be tried now, and what was tried joins."""
    view = views.load(connection)
    tried = [v.lever for v in view.variants if not v.lever.null]
    known = {lever.identity: lever for lever in (*tried, *levers)}
    names = {row.sweep.name for row in view.sweeps}
    if ledger is not None:
        # A file that cannot be read is said by whoever reads it for its levers.
        with contextlib.suppress(LeverError):
            names |= {sweep.name for sweep in declared.sweeps(ledger)}
    return Grounds(
        view, best.fold(view), views.effective_configs(connection), tuple(known.values()), kinds,
        tuple(sorted(names)), fields, room=MOST_WAITING - _waiting(view),
    )  # fmt: skip


def _waiting(view: views.View) -> int:
    """How many levers of proposers were admitted and not tried yet; a sweep counts once."""
    tried = {v.lever.identity for v in view.variants}
    swept = {v.lever.sweep for v in view.variants}
    levers = (p.lever.identity for p in view.proposals if p.origin.startswith(attempts.ORIGIN))
    return sum(one not in tried for one in levers) + sum(
        row.sweep.name not in swept for row in view.sweeps
    )


def brief(
    connection: Connection, found: Grounds, proposer: str, seconds: float, ledger: Path
) -> dict[str, Any]:
    """The brief for one proposer."""
    profiles = [one for one in found.view.profiles if not one.failure]
    document = phases.document(connection, profiles[-1].number) if profiles else {}
    return briefs.compose(
        found, hardware=hardware(found, ledger.parent), profile=document, proposer=proposer,
        seconds=seconds,
    )  # fmt: skip


def hardware(found: Grounds, folder: Path) -> dict[str, Any]:
    """The box as the newest numbers were measured on it, and its memory."""
    look, view = host.probe(folder), found.view
    told: dict[str, Any] = {"memory_bytes": look.mem_total_bytes, "cores": look.cores}
    measured = [b.ruler_id for b in view.blocks() if b.ruler_id is not None]
    if measured:
        ruler = view.rulers[measured[-1]]
        told |= {"device": ruler.device, "driver": ruler.driver, "cores": ruler.cores,
                 "suite": ruler.suite, "clock_policy": ruler.clock_policy}  # fmt: skip
    return told


def phase(connection: Connection) -> int | None:
    """The number of the newest phase; None before the first."""
    entered = phases.entered(connection)
    return entered[-1].number if entered else None


def record(
    ledger: Ledger, proposer: str, found: Outcome, *, phase: int | None, now_utc: str
) -> int:
    """Enter an attempt and its levers; the loop is halted where files were changed by it."""
    number = attempts.record(
        ledger, proposer, found.outcome, found.detail, phase=phase, retry_s=found.retry_s,
        admitted=[one.lever for one in found.verdicts if one.lever is not None],
        verdicts=[one.to_json() for one in found.verdicts], transcript=found.transcript,
        sha256=found.sha256, wall_s=found.wall_s, usage=found.usage, now_utc=now_utc,
    )  # fmt: skip
    if found.tampered:
        # Whatever is measured from here on is of code that nobody chose.
        halts.halt(ledger, TAMPERED, f"proposer {proposer}: {found.detail}", None, now_utc)
    return number
