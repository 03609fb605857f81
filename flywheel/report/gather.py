"""Reads what a document needs from the ledger: the report's only effect."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from flywheel import best as best_of
from flywheel import plan
from flywheel.eligible import admit
from flywheel.ledger import halts, views
from flywheel.ledger.rows import RunRow
from flywheel.ledger.store import Ledger, log_text
from flywheel.lever import KINDS, Lever
from flywheel.report.compose import Around, build
from flywheel.report.detail import NEWEST, best_runs
from flywheel.report.document import Document, HaltLine, QueueLine
from flywheel.report.evidence import Evidence, evidence
from flywheel.report.scope import Scope

QUEUE_SHOWN = 5
# A page of log lines for a whole night; each run gets its share of them.
PAGE_LINES, MOST_LINES, LEAST_LINES = 6000, 24, 4


def gather(
    ledger: Ledger,
    levers: Sequence[Lever],
    *,
    since_utc: str | None = None,
    with_evidence: bool = False,
) -> Document:
    """The report on the newest campaign, or on all since a moment, with the plan's next step.

    `with_evidence` also reads each run's manifest and log, for the form that quotes them.
    Raises LedgerError when the ledger holds no campaign.
    """
    with ledger.reading() as connection:
        view = views.load(connection)
        best = best_of.fold(view)
        effective = views.effective_configs(connection)
        wanted = {run for run, _ in best_runs(view, best)[:NEWEST]}
        measured = {run: views.measurements(connection, run) for run in wanted}
        scope = Scope(view, since_utc)
        proof = _evidence(connection, _shown(scope, wanted)) if with_evidence else {}
        standing = _halts(connection)
        settled = halts.known(connection) - {(one.code, one.run) for one in standing}
    step = plan.next_step(view, levers, effective=effective, settled=settled)
    ready, refused = admit(view, levers, best, effective, KINDS)
    queue = [QueueLine(c.lever.name, c.lever.label(), why)
             for c, why in plan.ranked(view, ready)[:QUEUE_SHOWN]]
    notes = [r.reason for r in refused if "same change" in r.reason or "closed by" in r.reason]
    said = describe(step)
    if standing:
        said = f"HALTED: {standing[0].reason.rstrip('.')}; flywheel resume --why lifts it"
    return build(scope, Around(said, queue, standing, notes, measured, proof))


def _halts(connection: Connection) -> tuple[HaltLine, ...]:
    found = halts.standing(connection)
    return tuple(HaltLine(h.code, h.reason, h.run_id, h.created_utc) for h in found)


def _shown(scope: Scope, also: set[str]) -> list[RunRow]:
    """The runs that the report lists, and those that its detail stands on."""
    listed = {r.id: r for v in scope.variants() for b in scope.blocks(v) for r in b.runs}
    others = {r.id: r for b in scope.view.blocks() for r in b.runs if r.id in also}
    return list({**listed, **others}.values())


def _evidence(connection: Connection, runs: Sequence[RunRow]) -> dict[str, Evidence]:
    most = max(LEAST_LINES, min(MOST_LINES, PAGE_LINES // max(1, len(runs))))
    return {
        run.id: evidence(
            views.manifest(connection, run.id), log_text(connection, run.id),
            ok=run.outcome == "ok", most=most,
        )
        for run in runs
    }


def describe(step: plan.Step) -> str:
    """The plan's next step in one line."""
    if isinstance(step, plan.Stop):
        return f"{'HALTED: ' if step.halt else 'nothing: '}{step.reason}"
    if isinstance(step, plan.PricedOut):
        return f"{step.lever.label()}: {step.why}"
    name = step.lever.label() if step.purpose == "lever" else step.purpose
    return f"{name}: {step.why}"


