"""Which lever promises most for its time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from flywheel.ledger.rows import View
from flywheel.loop.eligible import Candidate
from flywheel.statistics.band import log_gain

DEFAULT_LOAD_MINUTES = 2.0
DEFAULT_TRAINING_MINUTES = 10.0
BLOCKS_EXPECTED = 3


def ranked(view: View, ready: Sequence[Candidate]) -> tuple[tuple[Candidate, str], ...]:
    """Candidates by predicted gain per minute, best first, each with its reason.

    P(win) is the mean of a Beta(1, 2) prior updated by the family's decided levers.
    """
    minutes = load_minutes(view)
    scored = []
    for candidate in ready:
        lever = candidate.lever
        chance = _p_win(view, lever.family) * candidate.discount
        cost = minutes * BLOCKS_EXPECTED * (1 if lever.hot else 4)
        if lever.kind == "head":
            cost = minutes + training_minutes(view)
        why = f"P(win) {chance:.2f} x {lever.predicted_gain * 100:.3g} % / {cost:.3g} min"
        score = chance * log_gain(lever.predicted_gain) / cost
        scored.append((-score, lever.name, candidate, why + candidate.note))
    scored.sort(key=lambda s: s[:2])
    return tuple((candidate, why) for _, _, candidate, why in scored)


def load_minutes(view: View) -> float:
    """Median wall time of a good load so far, in minutes; a guess before the first."""
    walls = [r.wall_s for b in view.blocks() for r in b.runs if r.outcome == "ok" and r.wall_s > 0]
    return median(walls) / 60 if walls else DEFAULT_LOAD_MINUTES


def training_minutes(view: View) -> float:
    """Median time of a training so far, in minutes; a guess before the first."""
    walls = [row.card.get("training", {}).get("seconds", 0.0) for row in view.heads]
    known = [wall for wall in walls if wall > 0]
    return median(known) / 60 if known else DEFAULT_TRAINING_MINUTES


def _p_win(view: View, family: str) -> float:
    decided = [
        v.decision.promoted
        for v in view.variants
        if v.purpose == "lever" and v.lever.family == family
        and v.decision is not None and v.decision.ending != "void"
    ]
    return (1 + sum(decided)) / (3 + len(decided))
