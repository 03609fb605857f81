"""The halts of a ledger as the loop meets them: written down when seen, in force until lifted."""

from __future__ import annotations

from flywheel.ledger import halts, views
from flywheel.ledger.store import Ledger
from flywheel.loop.halting import Evidence, alarms, halt_sentence


def halted(ledger: Ledger, *, now_utc: str) -> str | None:
    """Write down what must stop everything; why the loop may not go on, None when it may."""
    with ledger.reading() as connection:
        view, known = views.load(connection), halts.known(connection)
    if view.campaign is not None and view.campaign.ended is None:
        for alarm in alarms(view, view.campaign, known):
            halts.halt(ledger, alarm.code, alarm.reason, alarm.run_id, now_utc)
    with ledger.reading() as connection:
        standing = halts.standing(connection)
    return halt_sentence(standing[0].code, standing[0].reason) if standing else None


def settled(ledger: Ledger) -> frozenset[Evidence]:
    """The evidence of every halt that was ever written down: it is not raised again."""
    with ledger.reading() as connection:
        return halts.known(connection)
