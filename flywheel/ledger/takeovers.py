"""Leases that were taken from a holder proved dead."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from flywheel.ledger import models
from flywheel.ledger.store import Ledger


@dataclass(frozen=True, slots=True)
class TakeoverRow:
    """A stale lease that was taken; `proof` says how its holder was known to be gone."""

    id: int
    path: str
    device: str
    previous: Mapping[str, Any]
    proof: str
    created_utc: str


def record(
    ledger: Ledger,
    *,
    path: str,
    device: str,
    previous: Mapping[str, Any],
    proof: str,
    now_utc: str,
) -> int:
    """Record that the lease at `path` was taken from `previous`; returns the entry's number."""
    with ledger.transaction() as writer:
        return writer.append(
            models.takeover,
            path=path, device=device, previous=dict(previous), proof=proof, created_utc=now_utc,
        )


def takeovers(connection: Connection) -> tuple[TakeoverRow, ...]:
    """Every takeover, oldest first."""
    return tuple(
        TakeoverRow(r.id, r.path, r.device, json.loads(r.previous), r.proof, r.created_utc)
        for r in connection.execute(select(models.takeover).order_by(models.takeover.c.id))
    )
