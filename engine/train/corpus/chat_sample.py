"""One synthetic conversation, and the seeds that keep training, suite and hold-out apart."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CATEGORIES: tuple[str, ...] = (
    "long_context",
    "agentic_format",
    "code_edit",
    "multi_turn",
    "short_factual",
    "reasoning",
    "explanation",
    "code_gen",
)


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation whose last message is the assistant's answer."""

    category: str
    messages: tuple[Mapping[str, Any], ...]
    thinking: bool = False

    @property
    def prompt(self) -> tuple[Mapping[str, Any], ...]:
        """The messages without the answer."""
        return self.messages[:-1]

    @property
    def answer(self) -> Mapping[str, Any]:
        """The assistant message to be learned."""
        return self.messages[-1]


def stream(split: str, category: str, index: int) -> random.Random:
    """The random stream of one sample. Splits never share a seed string, hence no sample."""
    return random.Random(f"{split}/{category}/{index}")


def ask(
    category: str, question: str, answer: str, *, system: str = "", reasoning: str = ""
) -> Chat:
    """A single-turn chat; with ``reasoning`` it is one in thinking mode."""
    head = ({"role": "system", "content": system},) if system else ()
    reply: dict[str, Any] = {"role": "assistant", "content": answer}
    if reasoning:
        reply["reasoning_content"] = reasoning
    return Chat(
        category, (*head, {"role": "user", "content": question}, reply), thinking=bool(reasoning)
    )
