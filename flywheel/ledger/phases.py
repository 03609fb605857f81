"""The phases of campaigns, the profiles that they asked for, and the levers that came of those."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, func, literal_column, select

from flywheel.ledger import models
from flywheel.ledger.rows import PhaseRow, ProfileRow, ProposalRow
from flywheel.ledger.store import Ledger
from flywheel.lever import Lever

RESIDUAL = "residual"


def enter(
    ledger: Ledger, phase: str, why: str, decisions: Sequence[int], *, now_utc: str
) -> str:
    """The newest campaign enters a phase: a finding of its newest variant. Returns its sentence."""
    sentence = f"{phase}: {why}"
    with ledger.transaction() as writer:
        connection, variant = writer.connection, models.variant.c
        campaign = connection.execute(select(func.max(models.campaign.c.id))).scalar_one()
        newest = select(func.max(variant.id)).where(variant.campaign_id == campaign)
        finding = writer.append(
            models.finding, variant_id=connection.execute(newest).scalar_one(), decision_id=None,
            sentence=sentence, evidence={"phase": phase, "decisions": list(decisions)},
            created_utc=now_utc,
        )
        writer.append(
            models.phase,
            campaign_id=campaign, phase=phase, why=why, finding=finding, created_utc=now_utc,
            after_decision=connection.execute(select(func.max(models.decision.c.id))).scalar() or 0,
        )
    return sentence


def profiled(
    ledger: Ledger,
    config: Mapping[str, Any],
    document: Mapping[str, Any],
    top: str,
    levers: Sequence[tuple[Lever, str]],
    *,
    now_utc: str,
) -> None:
    """Record a profile of the newest phase, and the levers that it led to, each with its phase."""
    with ledger.transaction() as writer:
        number = writer.append(
            models.profile, phase_id=_newest_phase(writer.connection), config=dict(config),
            top=top, levers=len(levers), failure="", document=dict(document), created_utc=now_utc,
        )
        for lever, because in levers:
            writer.append_once(
                models.proposal, "lever_identity", lever_identity=lever.identity,
                lever=told(lever), origin=RESIDUAL, because=because, profile_id=number,
                created_utc=now_utc,
            )


def not_profiled(
    ledger: Ledger, config: Mapping[str, Any], failure: str, *, now_utc: str
) -> None:
    """Record that the newest phase got no profile, and why."""
    with ledger.transaction() as writer:
        writer.append(
            models.profile, phase_id=_newest_phase(writer.connection), config=dict(config), top="",
            levers=0, failure=failure, document={}, created_utc=now_utc,
        )


def entered(connection: Connection) -> tuple[PhaseRow, ...]:
    """Every change of phase, oldest first."""
    return tuple(
        PhaseRow(r.id, r.campaign_id, r.phase, r.why, r.after_decision, r.finding, r.created_utc)
        for r in connection.execute(select(models.phase).order_by(models.phase.c.id))
    )


def profiles(connection: Connection) -> tuple[ProfileRow, ...]:
    """Every profile without its document, oldest first."""
    table = models.profile.c
    query = select(table.id, table.phase_id, table.top, table.levers, table.failure,
                   table.created_utc).order_by(table.id)  # fmt: skip
    return tuple(ProfileRow(*row) for row in connection.execute(query))


def document(connection: Connection, number: int) -> Mapping[str, Any]:
    """The whole document of one profile; empty where there was none to be had."""
    query = select(models.profile.c.document).where(models.profile.c.id == number)
    found: Mapping[str, Any] = json.loads(connection.execute(query).scalar_one())
    return found


def proposals(connection: Connection) -> tuple[ProposalRow, ...]:
    """Every lever that nobody declared, oldest first."""
    return tuple(
        ProposalRow(Lever(**json.loads(r.lever)), r.origin, r.because, r.created_utc)
        for r in connection.execute(select(models.proposal).order_by(literal_column("rowid")))
    )


def _newest_phase(connection: Connection) -> int:
    return int(connection.execute(select(func.max(models.phase.c.id))).scalar_one())


def told(lever: Lever) -> dict[str, Any]:
    """A lever as a proposal stores it."""
    body = {f.name: getattr(lever, f.name) for f in fields(lever) if f.init}
    return {**body, "change": dict(lever.change), "needs": list(lever.needs)}
