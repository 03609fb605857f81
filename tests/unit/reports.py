"""A finished campaign with every kind of ending, for the tests of reports."""

from __future__ import annotations

import shutil
from pathlib import Path

from records import NOW, World, drive, lever

from flywheel.ledger import views
from flywheel.ledger.store import Ledger
from flywheel.lever import Lever
from flywheel.loop import plan, planned
from flywheel.statistics.campaign import QUICK

LEVERS = [
    lever("fast"),
    lever("slow", {"moe": "gather"}),
    lever("flat", {"attention": "<b>"}),
    lever("wrong", {"linear": "rows"}),
    lever("dead", {"hyper": "fused"}),
    lever("twin", {"threads": 2}),
]
EFFECTS = {'{"threads":2}': -0.05, '{"moe":"gather"}': 0.04}
COMMITTED = Path(__file__).parents[2] / "ledger.db"


def fails(step: plan.NextBlock) -> tuple[str, str] | None:
    """One lever is incorrect, one never runs, one loses its first block."""
    if step.lever.name == "wrong":
        return "gate_failed", "lossless, arm B, prompt 5: token 212 is 7, plain decode says 8"
    if step.lever.name == "dead":
        return "seal_missing", "the log stops"
    if step.lever.name == "slow" and step.number == 1:
        return "guard_kill", "1.9 GB free, falling 10.8 GB/s"
    return None


def finished(path: Path, levers: list[Lever] | None = None, *, box: str = "h200-1") -> Ledger:
    """A campaign that ran to its end on a fabricated box."""
    opened = Ledger.open(path)
    planned.open_campaign(opened, QUICK, start={"threads": 1}, box=box, now_utc=NOW)
    drive(opened, LEVERS if levers is None else levers, World(EFFECTS, fails=fails))
    return opened


def finished_view(folder: Path) -> views.View:
    """What the ledger of a finished campaign holds."""
    with finished(folder / "ledger.db").reading() as connection:
        return views.load(connection)


def committed(folder: Path) -> Path:
    """A copy of the repository's own measured ledger."""
    return Path(shutil.copy(COMMITTED, folder / "ledger.db"))
