"""What is served and why, from the ledger, as the JSON that the server's own page shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from flywheel.box.clock import count, utc_text
from flywheel.errors import LedgerError
from flywheel.files import dump, write_atomic
from flywheel.ledger import faults, views
from flywheel.ledger.rows import DecisionRow, View
from flywheel.ledger.store import Ledger
from flywheel.lever import Lever
from flywheel.report import gather
from flywheel.report.document import Figure
from flywheel.report.words import stamp
from flywheel.serve.chosen import Chosen

FILE = "about.json"
# Decisions closer together than this belong to one night.
PAUSE = timedelta(hours=4)
FAULTS_SHOWN = 5  # the newest ones


def tell(ledger: Ledger, levers: Sequence[Lever], chosen: Chosen, proof: str) -> dict[str, Any]:
    """The account of one choice; without figures where the ledger has no campaign."""
    with ledger.reading() as connection:
        view = views.load(connection)
        broken = faults.faults(connection)[-FAULTS_SHOWN:][::-1]
    told: dict[str, Any] = {
        "made_utc": utc_text(),
        "headline": chosen.label,
        "decision": chosen.decision,
        "proof": proof,
        "config": chosen.whole,
        "promotions": [_decided(view, d) for d in _of(view, chosen.promotions)],
        "night": _night(view),
        "faults": [{"said": row.fault.brief, "at_utc": row.fault.at_utc} for row in broken],
    }
    try:
        document = gather.gather(ledger, levers)
    except LedgerError:
        nothing = Figure("nothing measured yet")
        return told | _figures(Figure("no canary yet"), nothing, nothing) | {"first_config": {}}
    first = {"first_config": dict(document.first_config)}
    return told | first | _figures(document.canaries, document.incumbent, document.gain)


def write(folder: Path, told: Mapping[str, Any]) -> Path:
    """Leave the account in a folder."""
    path = folder / FILE
    write_atomic(path, dump(dict(told)), durable=False)
    return path


def _figures(canaries: Figure, incumbent: Figure, gain: Figure) -> dict[str, Any]:
    figures = {"canaries": canaries, "incumbent": incumbent, "gain": gain}
    return {
        name: {field: getattr(figure, field) for field in ("text", "value", "low", "high")}
        for name, figure in figures.items()
    }


def _of(view: View, numbers: Sequence[int]) -> list[DecisionRow]:
    return [d for d in view.decisions if d.number in numbers]


def _night(view: View) -> dict[str, Any] | None:
    """The decisions that were made together with the newest one, canaries left out."""
    found: list[DecisionRow] = []
    for decision in reversed(view.standing()):
        if found and _apart(decision, found[-1]) > PAUSE:
            break
        found.append(decision)
    if not found:
        return None
    shown = [d for d in found if not d.null]
    promoted = count(sum(d.promoted for d in shown), "promotion")
    first, last = found[-1].created_utc, found[0].created_utc
    return {
        "text": f"{stamp(first)} to {stamp(last)[11:]} UTC · {promoted}",
        "decisions": [_decided(view, d) for d in shown],
    }


def _apart(one: DecisionRow, other: DecisionRow) -> timedelta:
    times = [datetime.fromisoformat(d.created_utc) for d in (one, other)]
    return abs(times[1] - times[0])


def _decided(view: View, decision: DecisionRow) -> dict[str, Any]:
    lever = view.variant(decision.variant_id).lever
    return {
        "decision": decision.number,
        "label": f"{lever.name}: {lever.label()}",
        "ending": decision.ending,
        "said": decision.sentence,
        "date": decision.created_utc[:10],
    }
