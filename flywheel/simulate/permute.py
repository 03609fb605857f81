"""A real history with its labels shuffled: what would the rule have made of nothing?

What each lever does is taken out of its blocks, and in each block the two arms change names by lot.
So every lever is null while the box's own noise stays; whatever is promoted then is an error that
no invented box was needed for.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from flywheel.ledger.rows import BlockRow, VariantRow, View
from flywheel.loop.readjudicate import judge_again
from flywheel.statistics.block import BlockEstimate
from flywheel.statistics.campaign import clopper_pearson

Pairs = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Permuted:
    """`promoted` of `decided` verdicts over `times` shuffles; `high` bounds their rate."""

    times: int
    decided: int
    promoted: int
    high: float


def permute(view: View, times: int, seed: int) -> Permuted:
    """Shuffle and decide again, as often as asked."""
    verdicts = [v for k in range(times) for v in _endings(view, random.Random(f"{seed} {k}"))]
    promoted = sum(ending == "promoted" for ending in verdicts)
    high = clopper_pearson(promoted, len(verdicts))[1]
    return Permuted(times, len(verdicts), promoted, high)


def _endings(view: View, dice: random.Random) -> Iterator[str | None]:
    for judged in judge_again(_shuffled(view, dice), lambda campaign: campaign.settings.rule):
        if judged.verdict.n:
            yield judged.verdict.ending


def _shuffled(view: View, dice: random.Random) -> View:
    return replace(
        view,
        variants=tuple(replace(v, blocks=_nulls(v, dice)) for v in view.variants),
    )


def _nulls(variant: VariantRow, dice: random.Random) -> tuple[BlockRow, ...]:
    """The blocks without what the lever does, as far as n blocks can tell, and with drawn signs.

    What is left about the mean of n is too small by sqrt((n - 1) / n), which is made up for.
    """
    estimates, n = variant.estimates, len(variant.estimates)
    if n < 2 and not variant.null:
        return tuple(replace(b, estimate=None, ruler_id=None) for b in variant.blocks)
    shift: dict[str, float] = defaultdict(float)
    grow = 1.0
    if not variant.null:
        grow = math.sqrt(n / (n - 1))
        for estimate in estimates:
            for name, effect in _effects(estimate):
                shift[name] += effect / n

    def turned(estimate: BlockEstimate) -> BlockEstimate:
        sign = dice.choice((-1.0, 1.0)) * grow

        def of(kind: str, pairs: Pairs) -> Pairs:
            return tuple((name, sign * (e - shift[f"{kind} {name}"])) for name, e in pairs)

        return replace(
            estimate, effect=sign * (estimate.effect - shift[""]),
            categories=of("category", estimate.categories), guards=of("guard", estimate.guards),
        )

    return tuple(
        b if b.estimate is None else replace(b, estimate=turned(b.estimate))
        for b in variant.blocks
    )


def _effects(estimate: BlockEstimate) -> Iterator[tuple[str, float]]:
    yield "", estimate.effect
    yield from ((f"category {name}", effect) for name, effect in estimate.categories)
    yield from ((f"guard {name}", effect) for name, effect in estimate.guards)
