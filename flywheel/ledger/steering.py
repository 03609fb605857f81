"""What a person said of a lever: priced, deferred, reopened. And why each lever was chosen."""

from __future__ import annotations

import json

from sqlalchemy import Connection, func, select

from flywheel.errors import LedgerError
from flywheel.ledger import models
from flywheel.ledger.rows import ChoiceRow, SteeringRow
from flywheel.ledger.store import Ledger
from flywheel.lever import Lever


def steer(
    ledger: Ledger, lever: Lever, word: str, why: str, *, now_utc: str, ceiling: float | None = None
) -> None:
    """Record a word of `models.STEERING` about a lever; LedgerError without a reason."""
    if not why.strip():
        raise LedgerError("what is said of a lever is recorded with its reason")
    with ledger.transaction() as writer:
        newest = writer.connection.execute(select(func.max(models.decision.c.id))).scalar()
        writer.append(
            models.steering,
            lever_identity=lever.identity,
            name=lever.name,
            word=word,
            ceiling=ceiling,
            why=why.strip(),
            after_decision=newest or 0,
            created_utc=now_utc,
        )


def said(connection: Connection) -> tuple[SteeringRow, ...]:
    """Everything that was said, oldest first."""
    return tuple(
        SteeringRow(r.id, r.lever_identity, r.name, r.word, r.ceiling, r.why, r.after_decision,
                    r.created_utc)
        for r in connection.execute(select(models.steering).order_by(models.steering.c.id))
    )  # fmt: skip


def choices(connection: Connection, identity: str) -> tuple[ChoiceRow, ...]:
    """Every time that the plan chose one lever, oldest first."""
    block, variant, choice = models.block_plan, models.variant, models.choice
    query = (
        select(choice, block.c.why)
        .join(block, block.c.id == choice.c.block_id)
        .join(variant, variant.c.id == block.c.variant_id)
        .where(variant.c.lever_identity == identity)
        .order_by(block.c.serial)
    )
    return tuple(
        ChoiceRow(r.block_id, r.value, json.loads(r.terms),
                  tuple((name, value) for name, value in json.loads(r.runners_up)), r.why)
        for r in connection.execute(query)
    )  # fmt: skip
