"""Tau of two heads from one load. Pure.

Greedy decoding repeats itself to the token, so more loads say nothing new about a head: here the
prompt is the sample, and the spread between prompts is what a difference must stand out from.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean, variance

from flywheel.errors import BlockError
from flywheel.run.record import Point, RunRecord
from flywheel.statistics.block import (
    CANDIDATE,
    INCUMBENT,
    BlockEstimate,
    PromptRounds,
    log_ratio,
)

# Prompts of the hold-out stand in the same load under names that begin so.
HELD_OUT = "holdout/"


def tau_block(record: RunRecord) -> BlockEstimate:
    """One load that decoded the same prompts with both heads.

    The effect is that of the suite's prompts; the hold-out's mean is its guard. Raises BlockError
    when repeats of an arm differ, when the arms do not fit each other, or when nothing counts.
    """
    order = record.header.plan.order
    if set(order) != {INCUMBENT, CANDIDATE} or order != order[::-1]:
        raise BlockError(f"order {''.join(order)} is not a palindrome of A and B")
    _same_width(record)
    rows = _rows(record)
    suite = [r for r in rows if not r.held_out]
    if not suite:
        raise BlockError("no prompt of the suite counts: all were too short or looped")
    held_out = [-r.gain for r in rows if r.held_out]
    groups: dict[str, list[float]] = defaultdict(list)
    for row in suite:
        groups[row.category].append(-row.gain)
    effects = [-row.gain for row in suite]
    return BlockEstimate(
        effect=fmean(effects),
        contrast=None,
        within_sd=0.0,
        prompts=len(suite),
        level_log_ms=fmean(log_ratio(r.incumbent, r.made) for r in suite),
        metric="tau",
        prompt_sd=math.sqrt(variance(effects) / len(effects)) if len(effects) > 1 else 0.0,
        loads=1,
        tokens=sum(r.made + 1 for r in suite),
        categories=tuple((name, fmean(values)) for name, values in sorted(groups.items())),
        guards=(("holdout", fmean(held_out)),) if held_out else (),
        by_prompt=tuple(rows),
    )


def _same_width(record: RunRecord) -> None:
    arms = {arm.name: arm.effective for arm in record.header.arms}
    for field in ("draft_width", "verify_policy"):
        if arms[INCUMBENT].get(field) != arms[CANDIDATE].get(field):
            raise BlockError(f"heads compare at equal {field} only")


def _rows(record: RunRecord) -> list[PromptRounds]:
    points: dict[str, dict[str, list[Point]]] = defaultdict(lambda: defaultdict(list))
    for point in record.points:
        points[point.prompt][point.arm].append(point)
    rows = []
    for prompt, arms in sorted(points.items()):
        first = arms[INCUMBENT][0]
        every = [p for found in arms.values() for p in found]
        if len({(p.tokens, p.tokens_sha256) for p in every}) != 1:
            raise BlockError(f"prompt {prompt}: the arms generated different tokens")
        if not all(p.counted for p in every):
            continue
        rows.append(
            PromptRounds(
                prompt, first.category, prompt.startswith(HELD_OUT), first.tokens - 1,
                _rounds(arms[INCUMBENT]), _rounds(arms[CANDIDATE]),
            )
        )  # fmt: skip
    return rows


def _rounds(repeats: Sequence[Point]) -> int:
    found = {p.rounds for p in repeats}
    if len(found) != 1 or min(found) < 1:
        raise BlockError(
            f"prompt {repeats[0].prompt}, arm {repeats[0].arm}: the same tokens took "
            f"{', '.join(map(str, sorted(found)))} rounds; a head must repeat itself"
        )
    return found.pop()
