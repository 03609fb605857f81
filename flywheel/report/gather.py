"""Reads what a document needs from the ledger: the report's only effect."""

from __future__ import annotations

from collections.abc import Sequence

from flywheel import best as best_of
from flywheel import plan
from flywheel.eligible import admit
from flywheel.ledger import halts, views
from flywheel.ledger.store import Ledger
from flywheel.lever import KINDS, Lever
from flywheel.report.compose import best_runs, build
from flywheel.report.detail import NEWEST
from flywheel.report.document import Document


def gather(ledger: Ledger, levers: Sequence[Lever]) -> Document:
    """The report on the newest campaign, with the plan's next step for these declared levers.

    Raises LedgerError when the ledger holds no campaign.
    """
    with ledger.reading() as connection:
        view = views.load(connection)
        best = best_of.fold(view)
        effective = views.effective_configs(connection)
        runs = {run for run, _ in best_runs(view, best)[:NEWEST]}
        standing = halts.standing(connection)
        settled = halts.known(connection) - {(one.code, one.run_id) for one in standing}
        measured = {run: views.measurements(connection, run) for run in runs}
    step = plan.next_step(view, levers, effective=effective, settled=settled)
    if standing:
        said = f"{standing[0].reason.rstrip('.')}; flywheel resume --why lifts it"
        step = plan.Stop(said, halt=True)
    _, refused = admit(view, levers, best, effective, KINDS)
    notes = [r.reason for r in refused if "same change" in r.reason or "closed by" in r.reason]
    return build(view, next_step=describe(step), measured=measured, notes=notes)


def describe(step: plan.Step) -> str:
    """The plan's next step in one line."""
    if isinstance(step, plan.Stop):
        return f"{'HALTED: ' if step.halt else 'nothing: '}{step.reason}"
    if isinstance(step, plan.PricedOut):
        return f"{step.lever.label()}: {step.why}"
    name = step.lever.label() if step.purpose == "lever" else step.purpose
    return f"{name}: {step.why}"
