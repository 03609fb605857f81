"""How many drafts are offered, and how many of them count."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.draft import Block
from engine.verify import accepted, offered


def block(margins: list[float], confidence: list[float]) -> Block:
    tokens = tuple(range(len(margins)))
    return Block(tokens, tuple(margins), tuple(confidence), torch.zeros(len(margins), 8))


def offer(found: Block, **fields: Any) -> int:
    return offered(found, EngineConfig.parse(fields))


def test_the_fixed_policy_offers_the_whole_block() -> None:
    assert offer(block([0.0] * 5, [0.0] * 5)) == 5
    assert offer(block([0.0] * 3, [0.0] * 3)) == 3
    assert offer(block([], [])) == 0


@pytest.mark.parametrize(
    ("margins", "kept"),
    [([2, 2, 2], 3), ([1, 1, 1], 3), ([2, 0.9, 5], 1), ([0.5, 9, 9], 0), ([2, 2, 0.99], 2)],
)
def test_the_margin_policy_stops_before_the_first_close_call(
    margins: list[float], kept: int
) -> None:
    found = block(margins, [0.0] * 3)
    assert offer(found, verify_policy="margin", margin_threshold=1.0) == kept


@pytest.mark.parametrize(
    ("confidence", "kept"),
    [
        ([1.0, 1.0, 1.0], 3),
        ([0.9, 0.9, 0.9], 3),  # 0.729
        ([0.7, 0.7, 0.99], 1),  # 0.49 at the second, though each is above
        ([0.5, 1.0, 1.0], 3),
        ([0.49, 1.0, 1.0], 0),
        ([0.8, 0.4, 1.0], 1),  # a later slot cannot win back what is lost
    ],
)
def test_the_confidence_policy_stops_when_the_survival_product_is_too_small(
    confidence: list[float], kept: int
) -> None:
    found = block([0.0] * 3, confidence)
    assert offer(found, verify_policy="confidence", confidence_threshold=0.5) == kept


@pytest.mark.parametrize("policy", ["fixed", "margin", "confidence"])
def test_what_is_offered_does_not_look_past_the_slot_it_decides(policy: str) -> None:
    """Later slots decide nothing about earlier ones, and what was drawn decides nothing at all."""
    for later in (0.0, 0.6, 1.0):
        found = block([2.0, 2.0, later * 2], [0.9, 0.9, later])
        fields = {"verify_policy": policy, "margin_threshold": 1.0, "confidence_threshold": 0.5}
        assert offer(found, **fields) >= 2
        other = Block((7, 7, 7), found.margins, found.confidence, found.logits)
        assert offer(other, **fields) == offer(found, **fields)


@pytest.mark.parametrize(
    ("drafts", "targets", "count"),
    [
        ([], [4], 0),
        ([1, 2, 3], [1, 2, 3, 4], 3),
        ([1, 2, 3], [9, 2, 3, 4], 0),
        ([1, 2, 3], [1, 9, 3, 4], 1),
        ([1, 2, 3], [1, 2, 9, 4], 2),
        ([5, 5, 5], [5, 5, 5, 5], 3),
    ],
)
def test_drafts_count_up_to_the_first_that_the_target_contradicts(
    drafts: list[int], targets: list[int], count: int
) -> None:
    assert accepted(drafts, targets) == count
