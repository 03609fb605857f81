"""The foreign project's frozen suite and the ruler that a log must answer to count. Data only.

Its prompts are raw token ids without a chat template, and its engine does not stop at the end of a
sequence: what it prints as tau is tokens per target forward over whatever follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

# The model's end-of-sequence id; generation went on after it.
EOS_ID = 1
# The first decoded token of the control prompt.
CONTROL_TOKEN = 11111
# The log prints this many tokens of each point and no more.
PRINTED_TOKENS = 40
# A slower plain decode than this was not the engine on its own: a sanitizer, a stall.
LEAST_BASE_TOK_S = Fraction(1)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: its number, its length in tokens, and what it is an example of."""

    number: int
    tokens: int
    category: str


CONTROL = Prompt(0, 6, "control")
PROMPTS = (
    Prompt(1, 35, "agentic_format"),
    Prompt(2, 42, "code_edit"),
    Prompt(3, 27, "code_gen"),
    Prompt(4, 15, "explanation"),
    Prompt(5, 83, "long_context"),
    Prompt(6, 15, "multi_turn"),
    Prompt(7, 38, "reasoning"),
    Prompt(8, 13, "short_factual"),
)


@dataclass(frozen=True, slots=True)
class Protocol:
    """What a point was asked to do. `adapt_k` is the margin threshold in force, not as asked."""

    tokens: int
    width: int
    passes: int
    adapt_k: Fraction


FROZEN = Protocol(tokens=200, width=6, passes=1, adapt_k=Fraction(3, 2))


def category(prompt: int) -> str:
    """What a prompt is an example of; empty for a prompt that is not of the suite."""
    return next((p.category for p in (CONTROL, *PROMPTS) if p.number == prompt), "")
