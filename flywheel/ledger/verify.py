"""Does everything that is recorded follow from what lies beside it? Reads only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, select

from flywheel.errors import FlywheelError
from flywheel.foreign import history
from flywheel.ledger import integrity, models, views
from flywheel.ledger.store import Ledger, log_text
from flywheel.lever import canonical
from flywheel.loop.judge import Parse
from flywheel.ruler import Ruler
from flywheel.run.manifest import Manifest
from flywheel.run.measurement import measurements
from flywheel.run.parse import parse
from flywheel.run.record import RunRecord


@dataclass(frozen=True, slots=True)
class Verified:
    """What was checked, and every sentence about what is wrong."""

    runs: int
    logs: int
    measurements: int
    problems: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """Nothing is wrong."""
        return not self.problems


def verify(
    ledger: Ledger,
    *,
    reread: Parse = parse,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Verified:
    """The file, its references and rules; then every identity, every log, its seal and numbers.

    `progress` is told how many of how many runs are done. A damaged file is not looked into
    further. Raises LedgerError only when the ledger cannot be read at all.
    """
    with ledger.reading() as connection:
        found = list(integrity.problems(connection))
        if found:
            return Verified(0, 0, 0, tuple(found))
        found += _identities(connection)
        found += history.differences(connection)
        runs = connection.execute(
            select(models.run.c.id, models.run.c.manifest, models.run_end.c.outcome,
                   models.run_end.c.evidence)
            .outerjoin(models.run_end, models.run_end.c.run_id == models.run.c.id)
            .order_by(models.run.c.id)
        ).all()  # fmt: skip
        logs = numbers = 0
        for done, row in enumerate(runs, 1):
            run = _Run(row.id, row.manifest, row.outcome, row.evidence)
            has_log, count, said = _verify_run(connection, run, reread)
            logs, numbers = logs + has_log, numbers + count
            found += said
            progress(done, len(runs))
    return Verified(len(runs), logs, numbers, tuple(found))


@dataclass(frozen=True, slots=True)
class _Run:
    id: str
    manifest: str
    outcome: str | None
    evidence: str | None


def _identities(connection: Connection) -> Iterator[str]:
    """Rulers and levers whose identity is not the hash of what they hold."""
    for row in connection.execute(select(models.ruler.c.identity, models.ruler.c.fields)):
        if Ruler.from_dict(json.loads(row.fields)).identity != row.identity:
            yield f"ruler {row.identity} does not have the fields of its identity"
    for identity, lever in views.levers(connection).items():
        if lever.identity != identity:
            yield f"lever {lever.name} does not change what its identity {identity} says"


def _verify_run(
    connection: Connection, run: _Run, reread: Parse
) -> tuple[bool, int, tuple[str, ...]]:
    """Whether it left a log, how many numbers came from it, and what is wrong."""
    try:
        manifest = Manifest.from_json(json.loads(run.manifest))
        text = log_text(connection, run.id)
    except FlywheelError as error:
        return True, 0, (str(error),)
    if manifest.run_id != run.id:
        return text is not None, 0, (f"run {run.id} has the manifest of {manifest.run_id}",)
    if run.outcome != "ok":
        return text is not None, 0, ()
    if text is None:
        return False, 0, (f"run {run.id} is ok, but its log is not there",)
    said = []
    if (changed := _not_as_it_ended(connection, run)) is not None:
        said.append(changed)
    read = reread(text, manifest)
    if not isinstance(read, RunRecord):
        return True, 0, (*said, f"run {run.id} is ok, but its log now reads: {read}")
    stored = views.measurements(connection, run.id)
    if sorted(map(str, stored)) != sorted(map(str, measurements(read))):
        said.append(f"the measurements of run {run.id} are not those of its log")
    if not _same_arms(connection, run, read):
        said.append(f"the arms of run {run.id} are not those of its log")
    return True, len(stored), tuple(said)


def _not_as_it_ended(connection: Connection, run: _Run) -> str | None:
    """The supervisor noted the log's hash as the run ended; the stored log must have the same."""
    left = json.loads(run.evidence or "{}").get("exit") or {}
    noted = left.get("log_sha256")
    query = select(models.log.c.sha256).where(models.log.c.run_id == run.id)
    if noted is None or connection.execute(query).scalar() == noted:
        return None
    return f"the log of run {run.id} is not the one that its supervisor saw"


def _same_arms(connection: Connection, run: _Run, record: RunRecord) -> bool:
    stored = {
        (r.name, r.requested, r.effective, r.fingerprint)
        for r in connection.execute(select(models.arm).where(models.arm.c.run_id == run.id))
    }
    return stored == {
        (a.name, canonical(dict(a.requested)), canonical(dict(a.effective)), a.fingerprint)
        for a in record.header.arms
    }
