"""Runs in, one block estimate out. Pure.

An engine load is the sample: whatever was repeated inside it is reduced to one number here, so
that no later step can mistake repeats or prompts for a larger n.

Everything is in log cost, so an effect is a ratio and adds: `effect` = log cost of B - log cost of
A, negative when B is better. The cost is time per token, or target forwards per token (1 / tau).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, variance

from flywheel.errors import BlockError
from flywheel.record import Point, RunRecord

INCUMBENT, CANDIDATE = "A", "B"
PATTERNS = ("ABBA", "BAAB")


@dataclass(frozen=True, slots=True)
class BlockEstimate:
    """One block's verdict on one lever.

    `contrast` is the treatment-free cubic contrast of a cold block (None when hot). `within_sd` is
    the part of the effect's sd that repeats inside a load explain; `prompt_sd` the part that
    differing prompts do. `level_log_ms` is the incumbent's log cost (log ms/token or log 1/tau).
    """

    effect: float
    contrast: float | None
    within_sd: float
    prompts: int
    level_log_ms: float
    metric: str
    prompt_sd: float = 0.0
    loads: int = 1
    tokens: int = 0
    categories: tuple[tuple[str, float], ...] = ()

    @property
    def hot(self) -> bool:
        """One load that measured both arms."""
        return self.loads == 1

    @property
    def gain(self) -> float:
        """Log gain: positive when the candidate is better."""
        return -self.effect


def cost(point: Point, metric: str) -> float:
    """Log cost of one repeat: log ms/token, or log forwards per token when the metric is tau.

    Raises BlockError for a point without tokens, rounds or time.
    """
    made = point.tokens - 1
    if made <= 0 or point.decode_ns <= 0 or point.rounds <= 0 or not point.finite:
        raise BlockError(
            f"prompt {point.prompt}, arm {point.arm}: {point.tokens} tokens in {point.rounds} "
            f"rounds and {point.decode_ns} ns are no measurement"
        )
    if metric == "ms_per_token":
        return math.log(point.decode_ns / made / 1e6)
    if metric == "tau":
        return math.log(point.rounds / made)
    raise BlockError(f"unknown metric {metric!r}")


@dataclass(frozen=True, slots=True)
class _Reading:
    """One prompt in one arm of one load: the median log cost and the variance of that median."""

    category: str
    tokens: int
    value: float
    noise: float


def _readings(record: RunRecord, arm: str, metric: str) -> dict[str, _Reading]:
    """Counted prompts of one arm. A prompt that any repeat excludes is excluded."""
    repeats: dict[str, list[Point]] = defaultdict(list)
    for point in record.points:
        if point.arm == arm:
            repeats[point.prompt].append(point)
    out = {}
    for prompt, points in repeats.items():
        if len({p.tokens for p in points}) != 1:
            raise BlockError(f"prompt {prompt}: repeats of arm {arm} differ in their token counts")
        if not all(p.counted for p in points):
            continue
        values = [cost(p, metric) for p in points]
        noise = variance(values) / len(values) if len(values) > 1 else 0.0
        out[prompt] = _Reading(points[0].category, points[0].tokens, median(values), noise)
    return out


def _same_prompts(left: Mapping[str, _Reading], right: Mapping[str, _Reading]) -> list[str]:
    """The prompts that both arms counted, which must be the same with equal token counts."""
    if left.keys() != right.keys():
        odd = sorted(left.keys() ^ right.keys())
        raise BlockError(f"the arms did not count the same prompts: {', '.join(odd)}")
    if not left:
        raise BlockError("no prompt counts: all were too short or looped")
    for prompt, reading in left.items():
        if reading.tokens != right[prompt].tokens:
            raise BlockError(
                f"prompt {prompt}: {reading.tokens} tokens against {right[prompt].tokens}; "
                "only equal tokens compare"
            )
    return sorted(left)


def hot_block(record: RunRecord, metric: str = "ms_per_token") -> BlockEstimate:
    """One load that measured both arms on the same prompts in palindromic order.

    Raises BlockError when the order is no palindrome of A and B (linear drift would then pass as
    an effect), when prompts or token counts differ, or when nothing counts.
    """
    order = record.header.plan.order
    if set(order) != {INCUMBENT, CANDIDATE} or order != order[::-1]:
        raise BlockError(f"order {''.join(order)} is not a palindrome of A and B")
    a = _readings(record, INCUMBENT, metric)
    b = _readings(record, CANDIDATE, metric)
    prompts = _same_prompts(a, b)
    differences = {p: b[p].value - a[p].value for p in prompts}
    return BlockEstimate(
        effect=fmean(differences.values()),
        contrast=None,
        within_sd=math.sqrt(sum(a[p].noise + b[p].noise for p in prompts)) / len(prompts),
        prompts=len(prompts),
        level_log_ms=fmean(a[p].value for p in prompts),
        metric=metric,
        prompt_sd=_spread(list(differences.values())),
        loads=1,
        tokens=sum(a[p].tokens for p in prompts),
        categories=_by_category(differences, a),
    )


def cold_block(records: Sequence[RunRecord], metric: str = "ms_per_token") -> BlockEstimate:
    """Four loads of one arm each, in order ABBA or BAAB.

    D = s (-y1 + y2 + y3 - y4) / 2 and C = (-y1 + 3 y2 - 3 y3 + y4) / sqrt(20): both have the
    variance of one load, D is free of level and linear drift, C of the treatment as well.
    Raises BlockError when the loads are no such block.
    """
    pattern = "".join(r.header.plan.arms[0] for r in records if len(r.header.plan.arms) == 1)
    if len(records) != 4 or pattern not in PATTERNS:
        raise BlockError(f"loads {pattern or '?'} are not one block of four, ABBA or BAAB")
    loads = [_readings(r, arm, metric) for r, arm in zip(records, pattern, strict=True)]
    for other in loads[1:]:
        _same_prompts(loads[0], other)
    prompts = sorted(loads[0])
    sign = 1.0 if pattern == "ABBA" else -1.0
    per_prompt = {p: [load[p].value for load in loads] for p in prompts}
    effects = {p: sign * (-y[0] + y[1] + y[2] - y[3]) / 2 for p, y in per_prompt.items()}
    y1, y2, y3, y4 = (fmean(y[i] for y in per_prompt.values()) for i in range(4))
    incumbent = [load for load, arm in zip(loads, pattern, strict=True) if arm == INCUMBENT]
    noise = sum(load[p].noise for load in loads for p in prompts)
    return BlockEstimate(
        effect=fmean(effects.values()),
        contrast=(-y1 + 3 * y2 - 3 * y3 + y4) / math.sqrt(20),
        within_sd=math.sqrt(noise) / 2 / len(prompts),
        prompts=len(prompts),
        level_log_ms=fmean(load[p].value for load in incumbent for p in prompts),
        metric=metric,
        prompt_sd=_spread(list(effects.values())),
        loads=4,
        tokens=sum(loads[0][p].tokens for p in prompts),
        categories=_by_category(effects, loads[0]),
    )


def _spread(values: Sequence[float]) -> float:
    """sd of the mean over prompts that comes from prompts differing in their effect."""
    return math.sqrt(variance(values) / len(values)) if len(values) > 1 else 0.0


def _by_category(
    effects: Mapping[str, float], readings: Mapping[str, _Reading]
) -> tuple[tuple[str, float], ...]:
    groups: dict[str, list[float]] = defaultdict(list)
    for prompt, effect in effects.items():
        groups[readings[prompt].category].append(effect)
    return tuple((name, fmean(values)) for name, values in sorted(groups.items()))
