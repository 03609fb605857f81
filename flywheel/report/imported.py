"""Imported history as lines of the report: what was kept, what was refused and why. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flywheel.box.clock import count
from flywheel.foreign.history import Imported

NO_CAMPAIGN = "no campaign of ours yet"
_KINDS = {"decode": "decode log", "guard": "guard log", "arms": "table"}


@dataclass(frozen=True, slots=True)
class ImportedLine:
    """One imported file; `said` is what it tells, or the gravest reason against it."""

    name: str
    sha256: str
    kind: str
    ruler: str | None
    outcome: str
    said: str


def line(one: Imported) -> ImportedLine:
    """One file as printed."""
    said = summary(one.facts, one.kind) if one.refusal is None else f"refused: {one.refusal}"
    label = None if one.ruler is None else one.ruler.label
    return ImportedLine(one.name, one.sha256, one.kind, label, one.outcome, said)


def counted(lines: Sequence[ImportedLine]) -> str:
    """How many files of each kind count, and how many were refused."""
    kinds = Counter(one.kind for one in lines if one.outcome == "ok")
    refused = sum(one.outcome != "ok" for one in lines)
    parts = [count(kinds[kind], word) for kind, word in _KINDS.items() if kinds[kind]]
    parts += [f"{refused} refused"] if refused else []
    return ", ".join(parts)


def summary(facts: Mapping[str, Any], kind: str) -> str:
    """What an admissible file tells, in a line."""
    if kind == "guard":
        named = "".join(f"; {sentence}" for sentence in facts["kills_that_freed_nothing"])
        return f"{count(facts['sessions'], 'session')}, {count(facts['kills'], 'kill')}{named}"
    if kind == "arms":
        flips = ", ".join(facts["flips"]) or "none"
        told = count(facts["arms"], "arm")
        return f"{told}; verdicts that the rule would not have given: {flips}"
    return (
        f"{facts['tokens_per_forward_mean_of_exact_ratios']:.4f} tokens/forward (mean of ratios; "
        f"{facts['tokens_per_forward_mean_of_printed_2dp']:.7g} of printed ones, "
        f"{facts['tokens_per_forward_pooled']:.4f} pooled), "
        f"{facts['tok_s_mean_of_printed_2dp']:.7g} tok/s, plain {facts['ar_tok_s']:.4g}; "
        f"no tau: {facts['decodes_past_eos']} of {facts['suite_prompts']} prompts past their end"
    )
