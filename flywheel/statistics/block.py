"""Runs in, one block estimate out. Pure.

An engine load is the sample: whatever was repeated inside it is reduced to one number here, so
that no later step can mistake repeats or prompts for a larger n.

Everything is in log cost, so an effect is a ratio and adds: `effect` = log cost of B - log cost of
A, negative when B is better. The cost is time per token, or target forwards per token (1 / tau).

Costs come from integers (nanoseconds, tokens, rounds) and carry no unit until a level is printed;
sums are exactly rounded. So neither the unit nor the order of prompts or repeats changes a bit.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, variance

from flywheel.errors import BlockError
from flywheel.lever import LOSSY_METRIC
from flywheel.run.record import Point, RunRecord

INCUMBENT, CANDIDATE = "A", "B"
PATTERNS = ("ABBA", "BAAB")
# Metrics that a lever may improve but must not worsen unseen, whatever it is judged on.
GUARDED = ("tau", "memory")
_LOG_NS_PER_MS = math.log(1e6)


@dataclass(frozen=True, slots=True)
class PromptRounds:
    """The rounds that two heads took for the same `made` tokens of one prompt."""

    prompt: str
    category: str
    held_out: bool
    made: int
    incumbent: int
    candidate: int

    @property
    def gain(self) -> float:
        """Log gain of tau: positive when the candidate took fewer rounds."""
        return log_ratio(self.incumbent, self.candidate)


@dataclass(frozen=True, slots=True)
class BlockEstimate:
    """One block's verdict on one lever.

    `contrast` is the treatment-free cubic contrast of a cold block (None when hot). `within_sd` is
    the part of the effect's sd that repeats inside a load explain; `prompt_sd` the part that
    differing prompts do. `level_log_ms` is the incumbent's log cost (log ms/token or log 1/tau).
    `guards` holds the log-cost effects on what the lever is not judged by: tau, and peak memory
    where each arm has a load of its own. `by_prompt` is there for heads alone, whose sample is the
    prompt.
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
    guards: tuple[tuple[str, float], ...] = ()
    by_prompt: tuple[PromptRounds, ...] = ()

    def agrees(self, other: BlockEstimate) -> bool:
        """Whether both say the same up to rounding; guards that one of them lacks do not count."""
        mine, theirs = _numbers(self), _numbers(other)
        return (
            (self.metric, self.loads, self.prompts, self.tokens, self.by_prompt)
            == (other.metric, other.loads, other.prompts, other.tokens, other.by_prompt)
            and mine.keys() == theirs.keys()
            and all(_near(mine[k], theirs[k]) for k in mine)
            and all(_near(v, dict(other.guards).get(k, v)) for k, v in self.guards)
        )

    @property
    def hot(self) -> bool:
        """One load that measured both arms."""
        return self.loads == 1

    @property
    def gain(self) -> float:
        """Log gain: positive when the candidate is better."""
        return -self.effect


def _numbers(estimate: BlockEstimate) -> dict[str, float]:
    out = {f"category {name}": value for name, value in estimate.categories}
    out |= {
        "effect": estimate.effect, "within_sd": estimate.within_sd,
        "prompt_sd": estimate.prompt_sd, "level": estimate.level_log_ms,
    }
    return out if estimate.contrast is None else {**out, "contrast": estimate.contrast}


def _near(left: float, right: float) -> bool:
    return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-12)


def log_ratio(numerator: int, denominator: int) -> float:
    """The log of an exact ratio. The ratio upside down has the very same bits with another sign."""
    return math.log(numerator) - math.log(denominator)


def abba(values: Sequence[float], pattern: str) -> tuple[float, float]:
    """Effect D and treatment-free contrast C of four loads' log costs, in the order measured.

    D = s (-y1 + y2 + y3 - y4) / 2 with s = 1 for ABBA and -1 for BAAB, and
    C = (-y1 + 3 y2 - 3 y3 + y4) / sqrt(20): both have the variance of one load, D is free of level
    and linear drift, C of the treatment as well.
    """
    y1, y2, y3, y4 = values
    sign = 1.0 if pattern == PATTERNS[0] else -1.0
    effect = sign * math.fsum((-y1, y2, y3, -y4)) / 2
    return effect, math.fsum((-y1, 3 * y2, -3 * y3, y4)) / math.sqrt(20)


def cost(point: Point, metric: str) -> float:
    """Log cost of one repeat: log ns/token, or log forwards per token when the metric is tau.

    `tok_per_s` is the rate read as a cost: the same bits as the time. Raises BlockError for a point
    without tokens, rounds or time.
    """
    made = point.tokens - 1
    if made <= 0 or point.decode_ns <= 0 or point.rounds <= 0 or not point.finite:
        raise BlockError(
            f"prompt {point.prompt}, arm {point.arm}: {point.tokens} tokens in {point.rounds} "
            f"rounds and {point.decode_ns} ns are no measurement"
        )
    if metric in ("ms_per_token", LOSSY_METRIC):
        return log_ratio(point.decode_ns, made)
    if metric == "tok_per_s":
        return -log_ratio(made, point.decode_ns)
    if metric == "tau":
        return log_ratio(point.rounds, made)
    raise BlockError(f"unknown metric {metric!r}")


@dataclass(frozen=True, slots=True)
class _Reading:
    """One prompt in one arm of one load: the median log cost and the variance of that median."""

    category: str
    tokens: int
    value: float
    noise: float


def _level(values: Sequence[float], metric: str) -> float:
    """The mean log cost in the unit that levels are stored in."""
    return fmean(values) - (0.0 if metric == "tau" else _LOG_NS_PER_MS)


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
    a, b = _both_arms(record, metric)
    prompts = _same_prompts(a, b)
    guards = (("tau", _hot_tau(record, prompts)),) if _guards_tau([record], metric) else ()
    return _of_one_load(a, b, prompts, metric, guards)


def lossy_block(record: RunRecord) -> BlockEstimate:
    """One load of an incumbent and of what says something else: the time per token of each.

    The texts differ, and so may their lengths; a prompt counts where it counts in both arms.
    Raises BlockError as `hot_block` does.
    """
    a, b = _both_arms(record, LOSSY_METRIC)
    prompts = sorted(a.keys() & b.keys())
    if not prompts:
        raise BlockError("no prompt counts in both arms: all were too short or looped")
    return _of_one_load(a, b, prompts, LOSSY_METRIC, ())


def _both_arms(
    record: RunRecord, metric: str
) -> tuple[Mapping[str, _Reading], Mapping[str, _Reading]]:
    """The readings of incumbent and candidate in one load; its order must be a palindrome."""
    order = record.header.plan.order
    if set(order) != {INCUMBENT, CANDIDATE} or order != order[::-1]:
        raise BlockError(f"order {''.join(order)} is not a palindrome of A and B")
    return _readings(record, INCUMBENT, metric), _readings(record, CANDIDATE, metric)


def _of_one_load(
    a: Mapping[str, _Reading],
    b: Mapping[str, _Reading],
    prompts: Sequence[str],
    metric: str,
    guards: tuple[tuple[str, float], ...],
) -> BlockEstimate:
    """The estimate of a load that held both arms, over the prompts that count."""
    differences = {p: b[p].value - a[p].value for p in prompts}
    return BlockEstimate(
        effect=fmean(differences.values()),
        contrast=None,
        within_sd=math.sqrt(math.fsum(r[p].noise for r in (a, b) for p in prompts)) / len(prompts),
        prompts=len(prompts),
        level_log_ms=_level([a[p].value for p in prompts], metric),
        metric=metric,
        prompt_sd=_spread(list(differences.values())),
        loads=1,
        tokens=sum(a[p].tokens for p in prompts),
        categories=_by_category(differences, a),
        guards=guards,
    )


def _guards_tau(records: Sequence[RunRecord], metric: str) -> bool:
    """Whether acceptance is there to be guarded: random weights have none."""
    return metric != "tau" and not any(r.header.synthetic for r in records)


def _hot_tau(record: RunRecord, prompts: Sequence[str]) -> float:
    a, b = (_readings(record, arm, "tau") for arm in (INCUMBENT, CANDIDATE))
    return fmean(b[p].value - a[p].value for p in prompts)


def cold_block(records: Sequence[RunRecord], metric: str = "ms_per_token") -> BlockEstimate:
    """Four loads of one arm each, in order ABBA or BAAB; see `abba`.

    Raises BlockError when the loads are no such block.
    """
    pattern = "".join(r.header.plan.arms[0] for r in records if len(r.header.plan.arms) == 1)
    if len(records) != 4 or pattern not in PATTERNS:
        raise BlockError(f"loads {pattern or '?'} are not one block of four, ABBA or BAAB")
    loads, prompts = _loads(records, pattern, metric)
    per_prompt = {p: [load[p].value for load in loads] for p in prompts}
    effects = {p: abba(y, pattern)[0] for p, y in per_prompt.items()}
    incumbent = [load for load, arm in zip(loads, pattern, strict=True) if arm == INCUMBENT]
    noise = math.fsum(load[p].noise for load in loads for p in prompts)
    return BlockEstimate(
        effect=fmean(effects.values()),
        contrast=abba([fmean(y[i] for y in per_prompt.values()) for i in range(4)], pattern)[1],
        within_sd=math.sqrt(noise) / 2 / len(prompts),
        prompts=len(prompts),
        level_log_ms=_level([load[p].value for load in incumbent for p in prompts], metric),
        metric=metric,
        prompt_sd=_spread(list(effects.values())),
        loads=4,
        tokens=sum(loads[0][p].tokens for p in prompts),
        categories=_by_category(effects, loads[0]),
        guards=_cold_guards(records, pattern, prompts, metric),
    )


def _loads(
    records: Sequence[RunRecord], arms: Sequence[str], metric: str
) -> tuple[list[dict[str, _Reading]], list[str]]:
    """The readings of loads with one arm each, and the prompts that all of them counted."""
    loads = [_readings(r, arm, metric) for r, arm in zip(records, arms, strict=True)]
    for other in loads[1:]:
        _same_prompts(loads[0], other)
    return loads, sorted(loads[0])


def load_costs(records: Sequence[RunRecord], metric: str = "ms_per_token") -> tuple[float, ...]:
    """One log cost for each load of a single arm, over the prompts that all of them counted.

    Raises BlockError when a load holds more than one arm or when prompts or token counts differ.
    """
    if any(len(r.header.plan.arms) != 1 for r in records):
        raise BlockError("a load of more than one arm has no single cost")
    loads, prompts = _loads(records, [r.header.plan.arms[0] for r in records], metric)
    return tuple(fmean(load[p].value for p in prompts) for load in loads)


def _cold_guards(
    records: Sequence[RunRecord], pattern: str, prompts: Sequence[str], metric: str
) -> tuple[tuple[str, float], ...]:
    memory = [math.log(r.peak_rss_bytes) for r in records if r.peak_rss_bytes]
    out = [("memory", abba(memory, pattern)[0])] if len(memory) == len(records) else []
    if _guards_tau(records, metric):
        loads = [_readings(r, arm, "tau") for r, arm in zip(records, pattern, strict=True)]
        out.append(("tau", fmean(abba([x[p].value for x in loads], pattern)[0] for p in prompts)))
    return tuple(out)


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
