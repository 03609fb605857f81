"""Does the draft head know when it is right? Ranking by AUC, reliability by bins. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from flywheel.width.evidence import Score

_LEAST_BIN = 5


@dataclass(frozen=True, slots=True)
class Bin:
    """Scores between two values: how many, what they said on average, how often they were right."""

    low: float
    high: float
    count: int
    said: float
    came: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """`auc` is None with one outcome only; `error` and `brier` exist for probabilities alone."""

    score: str
    count: int
    accepted: int
    auc: float | None
    bins: tuple[Bin, ...]
    error: float | None
    brier: float | None


def calibrate(score: str, scores: Sequence[Score], bins: int = 10) -> Calibration | None:
    """Calibration over every reached slot; None without any."""
    if not scores:
        return None
    found = _bins(scores, bins)
    chances = score == "confidence"
    return Calibration(
        score=score,
        count=len(scores),
        accepted=sum(s.accepted for s in scores),
        auc=auc(scores),
        bins=found,
        error=(
            math.fsum(b.count * abs(b.said - b.came) for b in found) / len(scores)
            if chances else None
        ),
        brier=(
            math.fsum((s.value - s.accepted) ** 2 for s in scores) / len(scores)
            if chances else None
        ),
    )  # fmt: skip


def auc(scores: Sequence[Score]) -> float | None:
    """How often an accepted slot scored above a rejected one; ties count half."""
    right = sum(s.accepted for s in scores)
    wrong = len(scores) - right
    if not right or not wrong:
        return None
    ordered = sorted(scores, key=lambda s: s.value)
    ranks, i = 0.0, 0
    while i < len(ordered):
        j = i
        while j < len(ordered) and ordered[j].value == ordered[i].value:
            j += 1
        ranks += (i + j + 1) / 2 * sum(s.accepted for s in ordered[i:j])
        i = j
    return (ranks - right * (right + 1) / 2) / (right * wrong)


def _bins(scores: Sequence[Score], bins: int) -> tuple[Bin, ...]:
    """About equally many scores each, in the order of their values; equal values stay together."""
    ordered = sorted(scores, key=lambda s: s.value)
    size = max(_LEAST_BIN, math.ceil(len(ordered) / bins))
    out, i = [], 0
    while i < len(ordered):
        j = min(i + size, len(ordered))
        while j < len(ordered) and ordered[j].value == ordered[j - 1].value:
            j += 1
        mine = ordered[i:j]
        out.append(Bin(
            mine[0].value, mine[-1].value, len(mine),
            math.fsum(s.value for s in mine) / len(mine),
            sum(s.accepted for s in mine) / len(mine),
        ))  # fmt: skip
        i = j
    return tuple(out)
