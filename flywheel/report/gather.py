"""Reads what a document needs from the ledger: the report's only effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from flywheel import best as best_of
from flywheel.best import Best
from flywheel.errors import LedgerError
from flywheel.foreign import history
from flywheel.ledger import faults, halts, views
from flywheel.ledger.rows import RunRow, View
from flywheel.ledger.store import Ledger, log_text
from flywheel.lever import KINDS, Lever
from flywheel.loop import plan
from flywheel.loop.eligible import admit
from flywheel.loop.ranking import ranked
from flywheel.propose.attempt import Asking
from flywheel.report.compose import Around, build
from flywheel.report.detail import NEWEST, best_runs
from flywheel.report.document import Document, FaultLine, HaltLine, QueueLine
from flywheel.report.evidence import Evidence, evidence
from flywheel.report.imported import ImportedLine, line
from flywheel.report.scope import Scope
from flywheel.run.measurement import Measurement
from flywheel.width import gather as width_gather
from flywheel.width.page import WidthPage, width_page

QUEUE_SHOWN = 5
# A page of log lines for a whole night; each run gets its share of them.
PAGE_LINES, MOST_LINES, LEAST_LINES = 6000, 24, 4


@dataclass(frozen=True, slots=True)
class Material:
    """All that a report reads. `settled` is the evidence of the halts that were lifted."""

    scope: Scope
    best: Best
    effective: Mapping[str, Mapping[str, Any]]
    standing: tuple[HaltLine, ...]
    settled: frozenset[tuple[str, str | None]]
    measured: Mapping[str, tuple[Measurement, ...]]
    evidence: Mapping[str, Evidence]
    imported: tuple[ImportedLine, ...]
    width: WidthPage | None
    faults: tuple[FaultLine, ...]


def read(
    connection: Connection, *, since_utc: str | None = None, with_evidence: bool = False
) -> Material:
    """Read the history, and the measurements of the newest runs of the best configuration.

    `with_evidence` also reads each run's manifest and log, for the form that quotes them.
    Raises LedgerError when the ledger holds no campaign.
    """
    view = views.load(connection)
    best = best_of.fold(view)
    scope = Scope(view, since_utc)
    standing = _halts(connection)
    runs = {run for run, _ in best_runs(view, best)[:NEWEST]}
    return Material(
        scope=scope,
        best=best,
        effective=views.effective_configs(connection),
        standing=standing,
        settled=halts.known(connection) - {(one.code, one.run) for one in standing},
        measured={run: views.measurements(connection, run) for run in runs},
        evidence=_evidence(connection, _shown(scope, runs)) if with_evidence else {},
        imported=tuple(map(line, history.imported(connection))),
        width=_width(connection) if with_evidence else None,
        faults=_faults(connection, since_utc),
    )


def gather(
    ledger: Ledger,
    levers: Sequence[Lever],
    *,
    first: Sequence[str] = (),
    since_utc: str | None = None,
    with_evidence: bool = False,
) -> Document:
    """The report on the newest campaign, or on all since a moment, with the plan's next step.

    `first` names the levers that a person wants tried before all others.

    Raises LedgerError when the ledger holds no campaign.
    """
    with ledger.reading() as connection:
        found = read(connection, since_utc=since_utc, with_evidence=with_evidence)
    view, standing = found.scope.view, found.standing
    step = plan.next_step(
        view, levers, first=first, profiles=True, effective=found.effective, settled=found.settled,
        asking=asking_of(view),
    )
    ready, refused = admit(view, levers, found.best, found.effective, KINDS)
    queue = [QueueLine(one.candidate.lever.name, one.candidate.lever.label(), one.why)
             for one in ranked(view, ready, first)[:QUEUE_SHOWN]]
    notes = [r.reason for r in refused if "same change" in r.reason or "closed by" in r.reason]
    said = describe(step)
    if standing:
        said = f"HALTED: {standing[0].reason.rstrip('.')}; flywheel resume --why lifts it"
    around = Around(said, queue, standing, notes, found.measured, found.evidence, found.imported,
                    found.width, found.faults)  # fmt: skip
    return build(found.scope, around)


def _width(connection: Connection) -> WidthPage | None:
    """The width analysis of the best configuration; None while none of its runs is there."""
    try:
        return width_page(width_gather.own(connection))
    except LedgerError:
        return None


def _halts(connection: Connection) -> tuple[HaltLine, ...]:
    found = halts.standing(connection)
    return tuple(HaltLine(h.code, h.reason, h.run_id, h.created_utc) for h in found)


def _faults(connection: Connection, since_utc: str | None) -> tuple[FaultLine, ...]:
    found = faults.faults(connection, since_utc)
    return tuple(FaultLine(r.fault.said, r.decision, r.fault.at_utc) for r in found)


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


def asking_of(view: View) -> Asking | None:
    """Who may be asked for levers, as far as the history knows: whoever was in this campaign."""
    campaign = view.campaign
    names = [a.proposer for a in view.attempts
             if campaign is not None and a.campaign_id == campaign.id and a.phase is not None]
    return Asking(tuple(dict.fromkeys(names))) if names else None


def describe(step: plan.Step) -> str:
    """The plan's next step in one line."""
    if isinstance(step, plan.Stop):
        return f"{'HALTED: ' if step.halt else 'nothing: '}{step.reason}"
    if isinstance(step, plan.PricedOut):
        return f"{step.lever.label()}: {step.why}"
    if isinstance(step, plan.PhaseChange):
        return f"{step.phase}: {step.why}"
    if isinstance(step, plan.TakeProfile):
        return f"a profile: {step.why}"
    if isinstance(step, plan.AskProposer):
        return f"{step.proposer} is asked for levers: {step.why}"
    if isinstance(step, plan.Rest):
        return f"nothing before {step.until_utc}: {step.why}"
    if isinstance(step, plan.Prove):
        return f"{step.lever.label()}: measured, to be decided"
    name = step.lever.label() if step.purpose == "lever" else step.purpose
    return f"{name}: {step.why}"


