"""Which lever promises most for its time, by what became of the levers before it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from flywheel.ledger.rows import VariantRow, View
from flywheel.loop.eligible import Candidate
from flywheel.statistics.band import log_gain
from flywheel.statistics.forecast import LOAD_MINUTES, Forecast, Idea, Past, Priority

# Decided, but not by what the lever is worth: it never ran, or a sibling went on in its place.
_NO_TRIAL = ("priced_out", "unresolvable", "family", "incumbent_moved")
# What a head is trained for, until one was.
TRAINING_MINUTES = 10.0


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate, the terms of its priority, and the line that says so."""

    candidate: Candidate
    priority: Priority
    why: str


def ranked(view: View, ready: Sequence[Candidate], first: Sequence[str] = ()) -> tuple[Ranked, ...]:
    """Candidates by expected gain per minute, best first, each with its reason.

    The names in `first` go before all others, in that order: a person asked for them.
    """
    forecast = Forecast(decided(view), load_minutes(view))
    places = {name: place for place, name in reversed(tuple(enumerate(first)))}
    found = []
    for candidate in ready:
        lever = candidate.lever
        priority = forecast.priority(
            Idea(lever.family, lever.predicted_gain, lever.hot, lever.slow, lever.share,
                 lever.ceiling, candidate.discount)
        )  # fmt: skip
        if lever.kind == "head":
            # It is trained, and then one load decides: its sample is the prompts of that load.
            minutes = training_minutes(view) + (load_minutes(view) or LOAD_MINUTES)
            priority = replace(priority, minutes=minutes)
        place = min(places.get(name, len(first)) for name in (lever.name, lever.sweep))
        asked = "asked for first: " if place < len(first) else ""
        why = f"{asked}{priority.sentence}{candidate.note}"
        # Nothing can be gained by what is lossy: its price is asked for when all else is tried.
        order = (place, lever.lossy, -priority.value, lever.name)
        found.append((order, Ranked(candidate, priority, why)))
    found.sort(key=lambda entry: entry[0])
    return tuple(entry[1] for entry in found)


def decided(view: View) -> tuple[Past, ...]:
    """What a forecast may learn from: every lever that was tried to an ending.

    Levers that chose one among themselves were one trial, won by the one that was promoted.
    """
    trials: dict[tuple[int, str], list[VariantRow]] = {}
    for variant in view.variants:
        if tried(variant):
            trials.setdefault((variant.campaign_id, variant.lever.group), []).append(variant)
    return tuple(_past(group) for group in trials.values())


def load_minutes(view: View) -> float | None:
    """Median wall time of a good load so far, in minutes; None before the first."""
    walls = [r.wall_s for b in view.blocks() for r in b.runs if r.outcome == "ok" and r.wall_s > 0]
    return median(walls) / 60 if walls else None


def training_minutes(view: View) -> float:
    """Median time of a training so far, in minutes; a guess before the first."""
    walls = [row.card.get("training", {}).get("seconds", 0.0) for row in view.heads]
    known = [wall for wall in walls if wall > 0]
    return median(known) / 60 if known else TRAINING_MINUTES


def tried(variant: VariantRow) -> bool:
    """Whether a lever was decided by what it is worth."""
    made = variant.decision
    return (
        variant.purpose == "lever"
        and not variant.lever.lossy
        and made is not None
        and made.ending != "void"
        and made.code not in _NO_TRIAL
    )


def _past(group: Sequence[VariantRow]) -> Past:
    told = next((v for v in group if v.decision and v.decision.promoted), group[-1])
    made, lever = told.decision, told.lever
    assert made is not None
    gain = made.details.get("shrunk_gain") if made.promoted else None
    good = [r for v in group for b in v.blocks for r in b.runs if r.outcome == "ok"]
    return Past(
        lever.family,
        told.predicted_gain,
        None if gain is None else log_gain(gain),
        lever.hot,
        # A head's one load says nothing of how many a hot lever takes.
        0 if lever.kind == "head" else len(good),
        tuple(run.wall_s / 60 for run in good if run.wall_s > 0),
    )
