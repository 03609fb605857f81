"""Which lever promises most for its time, by what became of the levers before it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from flywheel.ledger.rows import VariantRow, View
from flywheel.loop.eligible import Candidate
from flywheel.statistics.band import log_gain
from flywheel.statistics.forecast import Forecast, Idea, Past, Priority

# Decided, but not by what the lever is worth: it never ran, or a sibling went on in its place.
_NO_TRIAL = ("priced_out", "unresolvable", "family", "incumbent_moved")


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
        place = min(places.get(name, len(first)) for name in (lever.name, lever.sweep))
        asked = "asked for first: " if place < len(first) else ""
        why = f"{asked}{priority.sentence}{candidate.note}"
        found.append((place, -priority.value, lever.name, Ranked(candidate, priority, why)))
    found.sort(key=lambda entry: entry[:3])
    return tuple(entry[3] for entry in found)


def decided(view: View) -> tuple[Past, ...]:
    """What a forecast may learn from: every lever that was tried to an ending."""
    return tuple(_past(v) for v in view.variants if tried(v))


def load_minutes(view: View) -> float | None:
    """Median wall time of a good load so far, in minutes; None before the first."""
    walls = [r.wall_s for b in view.blocks() for r in b.runs if r.outcome == "ok" and r.wall_s > 0]
    return median(walls) / 60 if walls else None


def tried(variant: VariantRow) -> bool:
    """Whether a lever was decided by what it is worth."""
    made = variant.decision
    return (
        variant.purpose == "lever"
        and made is not None
        and made.ending != "void"
        and made.code not in _NO_TRIAL
    )


def _past(variant: VariantRow) -> Past:
    made, lever = variant.decision, variant.lever
    assert made is not None
    gain = made.details.get("shrunk_gain") if made.promoted else None
    good = [r for b in variant.blocks for r in b.runs if r.outcome == "ok"]
    return Past(
        lever.family,
        variant.predicted_gain,
        None if gain is None else log_gain(gain),
        lever.hot,
        len(good),
        tuple(run.wall_s / 60 for run in good if run.wall_s > 0),
    )
