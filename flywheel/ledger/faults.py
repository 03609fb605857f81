"""What broke while clients were served, and what was served when it did."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from flywheel.box.clock import count
from flywheel.ledger import models
from flywheel.ledger.store import Ledger

ENGINE, SERVER = "engine", "server"


@dataclass(frozen=True, slots=True)
class Fault:
    """`what` is `engine` (its server loaded it again) or `server` (the process left).

    `answers` is how many replies it ended, `at_utc` when it was noticed.
    """

    what: str
    detail: str
    answers: int
    at_utc: str

    @property
    def said(self) -> str:
        """`engine fault, 2 answers ended: RuntimeError: ...`."""
        return f"{self._head}: {self.detail}"

    @property
    def brief(self) -> str:
        """The same for clients, whom the words of an error are no business of."""
        return f"{self._head}: {self.detail.partition(':')[0]}"

    @property
    def _head(self) -> str:
        ended = f", {count(self.answers, 'answer')} ended" if self.answers else ""
        return f"{self.what} fault{ended}"


@dataclass(frozen=True, slots=True)
class FaultRow:
    """A fault on record; `decision` made what was served, None for a first configuration."""

    id: int
    fault: Fault
    decision: int | None
    config: Mapping[str, Any]


def record(ledger: Ledger, fault: Fault, decision: int | None, config: Mapping[str, Any]) -> int:
    """Append one fault; returns the entry's number."""
    with ledger.transaction() as writer:
        return writer.append(
            models.service_fault,
            what=fault.what, detail=fault.detail, answers=fault.answers, decision_id=decision,
            config=dict(config), created_utc=fault.at_utc,
        )


def faults(connection: Connection, since_utc: str | None = None) -> tuple[FaultRow, ...]:
    """Every fault, or those since a moment; oldest first."""
    table = models.service_fault
    query = select(table).order_by(table.c.id)
    if since_utc is not None:
        query = query.where(table.c.created_utc >= since_utc)
    return tuple(
        FaultRow(
            r.id, Fault(r.what, r.detail, r.answers, r.created_utc), r.decision_id,
            json.loads(r.config),
        )
        for r in connection.execute(query)
    )  # fmt: skip
