"""Acceptance from captures alone: every round that greedy decoding of a sequence would take.

Cheaper than an engine run by far, and no measurement: it tells where a training stands, what the
best width in hindsight would be worth, and whether one sequence can be learned by heart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import torch

from engine.heads.captured import Captured, Item, collate
from engine.heads.head import Head
from engine.train.forward import Forward, greedy


@dataclass(frozen=True, slots=True)
class Replayed:
    """Rounds and committed tokens of one sequence."""

    id: str
    category: str
    tokens: int
    rounds: int

    @property
    def tau(self) -> Fraction:
        """Committed tokens a round."""
        return Fraction(self.tokens, self.rounds)


@torch.no_grad()
def replay(head: Head, forward: Forward, item: Item, width: int) -> Replayed:
    """Decode one captured reply with drafts of `width` slots, each the head's greedy choice."""
    first, last = item.prompt - 1, len(item.ids) - 2
    anchors = torch.arange(first, last)
    batch = collate([item], [anchors]).to(head.device)
    blocks = forward.draft(head.weights, batch.taps.to(head.dtype), batch.ids, batch.anchors)
    drafts, _, _ = greedy(head.weights, blocks, batch.ids.gather(1, batch.anchors + 1))
    guesses, ids = drafts[0, :, 1 : width + 1].cpu(), item.ids
    at, rounds = first, 0
    while at < last:
        truth = ids[at + 2 : at + 2 + width]
        hits = int((guesses[at - first, : len(truth)] == truth).long().cumprod(0).sum())
        # The target's own token follows the accepted drafts, where the sequence has one left.
        at = min(at + hits + 1, last)
        rounds += 1
    return Replayed(item.id, item.category, last - first, rounds)


def replay_all(head: Head, data: Captured, width: int, limit: int | None = None) -> list[Replayed]:
    """Every sequence of a capture, or the first `limit`, that has at least one round."""
    forward = Forward(head.geometry, head.device, rounding=True)
    numbers = range(min(len(data), limit or len(data)))
    items = (data.item(n) for n in numbers)
    return [replay(head, forward, i, width) for i in items if len(i.ids) - i.prompt > 1]


def by_category(found: Iterable[Replayed]) -> dict[str, Fraction]:
    """Mean tau of each category's sequences."""
    groups: dict[str, list[Fraction]] = defaultdict(list)
    for one in found:
        groups[one.category].append(one.tau)
    return {name: sum(taus, Fraction()) / len(taus) for name, taus in groups.items()}
