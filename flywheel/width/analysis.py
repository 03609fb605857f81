"""Acceptance by position, the best width, and what adapting it could gain at most. Pure.

Every gain is a fraction of time per token saved at equal tokens. Those that choose with hindsight
are ceilings: no policy that decides before the verify step can reach them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from flywheel.width.evidence import Costs, Evidence, Prompt

_Z95 = 1.959964


@dataclass(frozen=True, slots=True)
class Position:
    """The j-th draft: `share` of the rounds that offered it and had kept all before accept it."""

    position: int
    reached: int
    accepted: int
    share: float
    low: float
    high: float
    survival: float


@dataclass(frozen=True, slots=True)
class Choice:
    """A width and the time per token that the cost model gives it."""

    width: int
    ms_per_token: float


@dataclass(frozen=True, slots=True)
class PromptWidths:
    """One prompt: its best width in hindsight, beside what its rounds took as they were."""

    name: str
    category: str
    tau: float
    best: Choice
    used_ms: float
    measured_ms: float


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Time per token of the rounds as they were, and gains over it.

    `prompt_gain` is over the best fixed width. The last three know more than any policy could.
    """

    used_ms: float
    best_fixed: Choice
    fixed_gain: float
    prompt_gain: float
    round_gain: float
    perfect_gain: float


def positions(prompts: Sequence[Prompt]) -> tuple[Position, ...]:
    """Acceptance by position over some prompts, with Wilson's 95 % interval."""
    out: list[Position] = []
    survival = 1.0
    deepest = max((len(p.offered) for p in prompts), default=0)
    for j in range(deepest):
        reached = sum(p.reached[j] for p in prompts if j < len(p.reached))
        kept = sum(p.accepted[j] for p in prompts if j < len(p.accepted))
        # Where a nearer draft was never accepted this one cannot be; otherwise nothing is known.
        if not reached and survival:
            break
        share = kept / reached if reached else 0.0
        survival *= share
        low, high = _wilson(kept, reached) if reached else (0.0, 1.0)
        out.append(Position(j + 1, reached, kept, share, low, high, survival))
    return tuple(out)


def tokens_per_round(found: Sequence[Position], width: int) -> float:
    """Expected committed tokens of a round that offers `width` drafts."""
    return 1.0 + math.fsum(p.survival for p in found[:width])


def choices(found: Sequence[Position], costs: Costs) -> tuple[Choice, ...]:
    """Time per token at every width that has both a cost and an acceptance, 0 included."""
    out = []
    for width in range(len(found) + 1):
        ns = costs.round_ns(width)
        if ns is not None:
            out.append(Choice(width, ns / tokens_per_round(found, width) / 1e6))
    return tuple(out)


def best(found: Sequence[Choice]) -> Choice:
    """The fastest; the narrower of equals."""
    return min(found, key=lambda c: (c.ms_per_token, c.width))


def by_prompt(evidence: Evidence) -> tuple[PromptWidths, ...]:
    """Each prompt's best width in hindsight, where the rounds that it had have a cost."""
    out = []
    for prompt in evidence.prompts:
        spent = _summed(evidence.costs, _offers(prompt))
        if spent is not None:
            out.append(PromptWidths(
                prompt.name, prompt.category, prompt.tokens / prompt.rounds,
                best(choices(positions([prompt]), evidence.costs)),
                spent / prompt.tokens / 1e6, prompt.decode_ns / prompt.tokens / 1e6,
            ))  # fmt: skip
    return tuple(out)


def ceilings(evidence: Evidence) -> Ceilings | None:
    """What other widths would have gained; None where a step that was taken has no cost."""
    pooled = choices(positions(evidence.prompts), evidence.costs)
    costs, prompts = evidence.costs, evidence.prompts
    spent = _total([_summed(costs, _offers(p)) for p in prompts])
    hindsight = _total([_summed(costs, exactly(p)) for p in prompts])
    full = costs.round_ns(evidence.width)
    if not pooled or not spent or hindsight is None or full is None:
        return None
    tokens = sum(p.tokens for p in prompts)
    fixed, used_ms = best(pooled), spent / tokens / 1e6
    at_fixed = math.fsum(p.tokens * _at(p, costs, fixed.width) for p in prompts)
    chosen = math.fsum(p.tokens * _at(p, costs, None) for p in prompts)
    return Ceilings(
        used_ms=used_ms,
        best_fixed=fixed,
        fixed_gain=1 - fixed.ms_per_token / used_ms,
        prompt_gain=1 - chosen / at_fixed,
        round_gain=1 - hindsight / spent,
        perfect_gain=1 - full * tokens / (evidence.width + 1) / spent,
    )


def model_error(evidence: Evidence) -> float | None:
    """How far the cost model's time of all rounds lies from the measured one, as a fraction."""
    spent = _total([_summed(evidence.costs, _offers(p)) for p in evidence.prompts])
    measured = sum(p.decode_ns for p in evidence.prompts)
    return spent / measured - 1 if spent and measured else None


def _at(prompt: Prompt, costs: Costs, width: int | None) -> float:
    """A prompt's time per token at a width; at its best where it never got so far, or for None."""
    found = choices(positions([prompt]), costs)
    return next((c for c in found if c.width == width), best(found)).ms_per_token


def _total(parts: Sequence[float | None]) -> float | None:
    known = [p for p in parts if p is not None]
    return math.fsum(known) if len(known) == len(parts) else None


def exactly(prompt: Prompt) -> tuple[int, ...]:
    """How many rounds accepted exactly 0, 1, 2, ... drafts."""
    kept = (prompt.rounds, *prompt.accepted, 0)
    return tuple(a - b for a, b in pairwise(kept))


def _offers(prompt: Prompt) -> tuple[int, ...]:
    """How many rounds offered exactly 0, 1, 2, ... drafts."""
    offered = (prompt.rounds, *prompt.offered, 0)
    return tuple(a - b for a, b in pairwise(offered))


def _summed(costs: Costs, counts: Sequence[int]) -> float | None:
    """Nanoseconds of so many rounds of width 0, 1, 2, ...; None where one has no cost.

    The draft was paid for before anything was known, also where nothing was offered.
    """
    total = 0.0
    for width, rounds in enumerate(counts):
        step = costs.step_ns.get(width + 1)
        if rounds and step is None:
            return None
        total += rounds * ((step or 0.0) + costs.draft_ns)
    return total


def _wilson(kept: int, reached: int) -> tuple[float, float]:
    share, z2 = kept / reached, _Z95**2 / reached
    centre = (share + z2 / 2) / (1 + z2)
    half = _Z95 / (1 + z2) * math.sqrt(share * (1 - share) / reached + z2 / (4 * reached))
    return max(0.0, centre - half), min(1.0, centre + half)


def target_ceiling(texts: Sequence[Sequence[float]], width: int) -> float | None:
    """Tokens a round at temperature 1 for a head that always proposes the target's likeliest token.

    `texts` hold the target's largest probability at each token; the mean is over every window of
    `width` tokens inside a text. None where no text is that long.
    """
    windows = [t[i : i + width] for t in texts for i in range(len(t) - width + 1)]
    if not windows or not width:
        return None
    return math.fsum(_expected(w) for w in windows) / len(windows)


def _expected(chances: Sequence[float]) -> float:
    tokens, survival = 1.0, 1.0
    for chance in chances:
        survival *= chance
        tokens += survival
    return tokens
