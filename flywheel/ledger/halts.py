"""Sticky halts: why the loop may not go on until a person has looked, and that one has."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select

from flywheel.errors import LedgerError
from flywheel.ledger import models
from flywheel.ledger.store import Ledger


@dataclass(frozen=True, slots=True)
class HaltRow:
    """A halt that nobody has lifted; `run_id` names the run that led to it, if one did."""

    id: int
    code: str
    reason: str
    run_id: str | None
    created_utc: str


def halt(ledger: Ledger, code: str, reason: str, run_id: str | None, now_utc: str) -> int:
    """Halt the loop; returns the halt's number. The same halt standing already is not repeated."""
    with ledger.transaction() as writer:
        for row in standing(writer.connection):
            if (row.code, row.reason, row.run_id) == (code, reason, run_id):
                return row.id
        return writer.append(
            models.halt, code=code, reason=reason, run_id=run_id, created_utc=now_utc
        )


def standing(connection: Connection) -> tuple[HaltRow, ...]:
    """The halts that were not lifted, oldest first."""
    table, lifted = models.halt, models.resume
    query = (
        select(table)
        .outerjoin(lifted, lifted.c.halt_id == table.c.id)
        .where(lifted.c.halt_id.is_(None))
        .order_by(table.c.id)
    )
    return tuple(
        HaltRow(r.id, r.code, r.reason, r.run_id, r.created_utc) for r in connection.execute(query)
    )


def known(connection: Connection) -> frozenset[tuple[str, str | None]]:
    """Code and run of every halt that was ever entered, lifted or not."""
    query = select(models.halt.c.code, models.halt.c.run_id)
    return frozenset((r.code, r.run_id) for r in connection.execute(query))


def resume(ledger: Ledger, why: str, now_utc: str) -> tuple[HaltRow, ...]:
    """Lift every standing halt and return them; LedgerError without a reason."""
    if not why.strip():
        raise LedgerError("a halt is lifted with a reason: say what was found and put right")
    with ledger.transaction() as writer:
        found = standing(writer.connection)
        for row in found:
            writer.append(models.resume, halt_id=row.id, why=why.strip(), created_utc=now_utc)
    return found
