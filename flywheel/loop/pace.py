"""How long a load takes, from the loads of the campaign so far. Pure."""

from __future__ import annotations

from statistics import median

from flywheel.ledger.rows import View


def load_s(view: View) -> float:
    """Median wall time of the newest campaign's good loads; 0 before the first."""
    if view.campaign is None:
        return 0.0
    mine = view.of_campaign(view.campaign.id)
    runs = (run for variant in mine for block in variant.blocks for run in block.runs)
    walls = [run.wall_s for run in runs if run.outcome == "ok" and run.wall_s > 0]
    return median(walls) if walls else 0.0
