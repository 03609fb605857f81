"""The attempts to be given levers by proposers, and what was admitted of each answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, func, literal_column, select

from flywheel.ledger import models
from flywheel.ledger.phases import told
from flywheel.ledger.rows import AttemptRow, ProposedSweepRow
from flywheel.ledger.store import Ledger
from flywheel.lever import Lever
from flywheel.sweep import Sweep

ORIGIN = "proposer:"


def record(
    ledger: Ledger,
    proposer: str,
    outcome: str,
    detail: str,
    *,
    phase: int | None,
    admitted: Sequence[Lever | Sweep],
    verdicts: Sequence[Mapping[str, Any]],
    transcript: str,
    sha256: str,
    wall_s: float,
    now_utc: str,
    retry_s: float | None = None,
    usage: Mapping[str, Any] | None = None,
) -> int:
    """Record an attempt and the levers and sweeps that it led to; returns its number.

    `verdicts` has one entry for each proposed lever, with `admitted` in each.
    """
    with ledger.transaction() as writer:
        campaign = writer.connection.execute(select(func.max(models.campaign.c.id))).scalar_one()
        taken = sum(bool(one["admitted"]) for one in verdicts)
        number = writer.append(
            models.attempt, campaign_id=campaign, phase_id=phase, proposer=proposer,
            outcome=outcome, detail=detail, retry_s=retry_s, admitted=taken,
            refused=len(verdicts) - taken, verdicts=list(verdicts), usage=dict(usage or {}),
            transcript=transcript, sha256=sha256, wall_ns=round(wall_s * 1e9), created_utc=now_utc,
        )
        about = {"origin": ORIGIN + proposer, "created_utc": now_utc}
        for one in admitted:
            because = f"attempt {number}: {one.claim}"
            if isinstance(one, Sweep):
                writer.append_once(
                    models.proposed_sweep, "name", name=one.name, sweep=one.to_json(),
                    because=because, attempt_id=number, **about,
                )
            else:
                writer.append_once(
                    models.proposal, "lever_identity", lever_identity=one.identity,
                    lever=told(one), because=because, profile_id=None, **about,
                )
    return number


def made(connection: Connection) -> tuple[AttemptRow, ...]:
    """Every attempt, oldest first."""
    return tuple(
        AttemptRow(
            r.id, r.campaign_id, r.phase_id, r.proposer, r.outcome, r.detail, r.retry_s,
            r.admitted, r.refused, tuple(json.loads(r.verdicts)), json.loads(r.usage),
            r.transcript, r.sha256, r.wall_ns / 1e9, r.created_utc,
        )
        for r in connection.execute(select(models.attempt).order_by(models.attempt.c.id))
    )  # fmt: skip


def sweeps(connection: Connection) -> tuple[ProposedSweepRow, ...]:
    """Every sweep that nobody declared, oldest first."""
    query = select(models.proposed_sweep).order_by(literal_column("rowid"))
    return tuple(
        ProposedSweepRow(Sweep(**json.loads(r.sweep)), r.origin, r.because, r.created_utc)
        for r in connection.execute(query)
    )
