"""The session gate over a campaign's history: which heads go on, and at which odds. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from flywheel.heads.session import GO, STOP, Outcome, SessionRule, gate
from flywheel.ledger.rows import VariantRow
from flywheel.loop.eligible import Candidate, Ineligible


def session_gate(
    mine: Sequence[VariantRow], rule: SessionRule, ready: Sequence[Candidate]
) -> tuple[tuple[Candidate, ...], tuple[Ineligible, ...]]:
    """Split what is ready into what goes on and what the gate stops."""
    heads = [c for c in ready if c.lever.kind == "head"]
    if not heads:
        return tuple(ready), ()
    found = gate(rule, outcomes(mine))
    if found.word == GO:
        return tuple(ready), ()
    said = f"session gate: {found.word}, {found.why}"
    if found.word == STOP:
        rest = tuple(c for c in ready if c.lever.kind != "head")
        return rest, tuple(Ineligible(c.lever, f"{c.lever.name}: {said}") for c in heads)
    cheaper = tuple(
        replace(c, discount=c.discount * rule.discount, note=f"{c.note}; {said}")
        if c.lever.kind == "head"
        else c
        for c in ready
    )
    return cheaper, ()


def outcomes(mine: Sequence[VariantRow]) -> tuple[Outcome, ...]:
    """The decided heads of a campaign."""
    return tuple(
        Outcome(
            v.lever.name, math.expm1(v.estimates[-1].gain) if v.estimates else None,
            v.decision.ending == "incorrect",
        )
        for v in mine
        if v.lever.kind == "head" and v.decision is not None
    )  # fmt: skip
