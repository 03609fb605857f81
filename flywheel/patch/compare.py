"""A patched engine against the incumbent, over the same prompts: every way to be wrong. Pure.

Tokens are compared one and all. Whoever gives the right tokens may still have cheated: by knowing
them from an earlier time, or from the suite. Such an engine is another the second time, or is fast
for nobody but the suite.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from flywheel.patch.prompts import FRESH, SUITE
from flywheel.run.record import Plain, Point, RunRecord
from flywheel.statistics.block import CANDIDATE, INCUMBENT

# How much of its time an engine may lose from the first to the second time, as against the
# incumbent, before it must have remembered; and how much faster it may be on the suite alone.
# A remembered answer takes next to no time, so there is room for the noise of one load; rounds are
# counted, and have none but that of the prompts.
REMEMBERS = math.log(0.6)
SUITE_ONLY_TIME = math.log(0.6)
SUITE_ONLY_ROUNDS = math.log(0.75)
# The box may hold up any generation, so that one prompt says no more than this either way.
_MOST = 2.0


@dataclass(frozen=True, slots=True)
class Wrong:
    """One way in which a patch is caught: a word for it, and a sentence."""

    word: str
    sentence: str


def outputs(incumbent: Sequence[RunRecord], candidate: Sequence[RunRecord]) -> tuple[Wrong, ...]:
    """Where the candidate's loads gave other tokens than the incumbent's first one."""
    known = _answers(incumbent[0])
    found = []
    for record in candidate:
        entries: tuple[Plain | Point, ...] = (*record.plains, *record.points)
        for entry in entries:
            if (told := known.get(entry.prompt)) is not None and (
                wrong := _different(told, entry)
            ) is not None:
                found.append(wrong)
    return tuple(found)


def remembered(incumbent: RunRecord, candidate: RunRecord) -> tuple[Wrong, ...]:
    """Signs that the candidate knew a prompt when it saw it again."""
    found = []
    for (arm, prompt), points in _repeats(candidate).items():
        first, *later = points
        for point in later:
            if _way(point) != _way(first):
                said = (
                    f"prompt {prompt}, arm {arm}: {point.rounds} rounds the second time, "
                    f"{first.rounds} the first"
                )
                found.append(Wrong("remembers", said))
    change = _second_time(candidate) - _second_time(incumbent)
    if change < REMEMBERS:
        said = (
            f"the second time takes {math.exp(change):.2f} of the first, as against the incumbent's"
        )
        found.append(Wrong("remembers", said))
    return tuple(found)


def suite_only(incumbent: RunRecord, candidate: RunRecord) -> tuple[Wrong, ...]:
    """Whether the candidate is faster, or drafts better, on the suite's own prompts alone."""
    found = []
    for what, cost, fold, least in (
        ("time per token", lambda p: p.decode_ns, _middle, SUITE_ONLY_TIME),
        ("rounds per token", lambda p: p.rounds, _sum, SUITE_ONLY_ROUNDS),
    ):
        change = _suite_over_fresh(incumbent, candidate, cost, fold)
        if change is not None and change < least:
            fall = f"{what} falls to {math.exp(change):.2f}"
            said = f"{fall} on the suite's prompts as against new ones"
            found.append(Wrong("suite_only", said))
    return tuple(found)


def block(records: Sequence[RunRecord]) -> str | None:
    """What the patched loads of a cold block give that the incumbent's do not; None: the same."""
    mine, theirs = (
        [r for r in records if r.header.plan.arms == (arm,)] for arm in (INCUMBENT, CANDIDATE)
    )
    if not mine or not theirs:
        return None
    found = [*outputs(mine, theirs)]
    found += [wrong for one in theirs for wrong in remembered(mine[0], one)]
    return f"{found[0].word}: {found[0].sentence}" if found else None


def _answers(record: RunRecord) -> dict[str, Plain]:
    return {plain.prompt: plain for plain in record.plains}


def _different(told: Plain, entry: Plain | Point) -> Wrong | None:
    if entry.tokens_sha256 == told.tokens_sha256 and entry.tokens == told.tokens:
        return None
    way = "speculative" if isinstance(entry, Point) else "plain"
    place = f"prompt {entry.prompt} ({entry.prompt_tokens} tokens), {way} decode"
    if entry.tokens > told.tokens:
        return Wrong("longer", f"{place}: {entry.tokens} tokens, the incumbent's {told.tokens}")
    if entry.tokens < told.tokens:
        return Wrong("shorter", f"{place}: {entry.tokens} tokens, the incumbent's {told.tokens}")
    if isinstance(entry, Plain) and entry.distinct_4gram < told.distinct_4gram / 2:
        said = f"{entry.distinct_4gram:.2f} of its 4-grams are distinct, of the incumbent's "
        return Wrong("degenerate", f"{place}: {said}{told.distinct_4gram:.2f}")
    return Wrong("different", f"{place}: other tokens than the incumbent's")


def _repeats(record: RunRecord) -> Mapping[tuple[str, str], list[Point]]:
    found: dict[tuple[str, str], list[Point]] = defaultdict(list)
    for point in record.points:
        found[point.arm, point.prompt].append(point)
    return {key: sorted(points, key=lambda p: p.repeat) for key, points in found.items()}


def _way(point: Point) -> tuple[object, ...]:
    """Everything about a generation that an engine without a memory does again."""
    return point.rounds, point.offered_by_position, point.accepted_by_position, point.max_committed


def _second_time(record: RunRecord) -> float:
    """Log of the share of its first time that a second takes, a mean over prompts; 0 without any.

    The first prompt is left out, for it was warmed up.
    """
    warm = record.header.plan.prompts[0]
    shares = [
        min(points[-1].decode_ns / points[0].decode_ns, _MOST)
        for (_, prompt), points in _repeats(record).items()
        if prompt != warm and len(points) > 1 and points[0].decode_ns and points[-1].decode_ns
    ]
    return math.log(fmean(shares)) if shares else 0.0


def _suite_over_fresh(
    incumbent: RunRecord,
    candidate: RunRecord,
    cost: Callable[[Point], int],
    fold: Callable[[Sequence[tuple[int, int]]], float],
) -> float | None:
    """Log change of a cost on the suite's prompts less that on fresh ones; None without both.

    `fold` makes one change of what each prompt cost the candidate and the incumbent.
    """
    mine, theirs = (_by_prompt(record, cost) for record in (candidate, incumbent))
    pairs = {
        kind: [(mine[p], theirs[p]) for p in mine.keys() & theirs.keys()
               if p.partition("/")[0] == kind]
        for kind in (SUITE, FRESH)
    }  # fmt: skip
    return fold(pairs[SUITE]) - fold(pairs[FRESH]) if all(pairs.values()) else None


def _middle(pairs: Sequence[tuple[int, int]]) -> float:
    """Of times the prompt in the middle counts."""
    return median(math.log(mine / theirs) for mine, theirs in pairs)


def _sum(pairs: Sequence[tuple[int, int]]) -> float:
    """Of what is counted every prompt does."""
    return math.log(sum(mine for mine, _ in pairs) / sum(theirs for _, theirs in pairs))


def _by_prompt(record: RunRecord, cost: Callable[[Point], int]) -> Mapping[str, int]:
    """What each prompt of more than one token cost in all, where that is anything."""
    found: dict[str, int] = defaultdict(int)
    for point in record.points:
        if point.tokens > 1:
            found[point.prompt] += cost(point)
    return {prompt: total for prompt, total in found.items() if total}
