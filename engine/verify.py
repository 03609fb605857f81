"""The decisions of a round: how many drafts to offer, how many to accept, what to say then."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from engine.config import EngineConfig
from engine.draft import Block
from engine.sampling import Sampler


def offered(block: Block, config: EngineConfig) -> int:
    """How many drafts of `block` the target should verify.

    `margin` stops before the first slot whose two best logits are closer than the threshold,
    `confidence` before the first whose survival product falls below it. Both look at a slot's
    distribution, never at what was drawn from it.
    """
    if config.verify_policy == "margin":
        return _run(margin >= config.margin_threshold for margin in block.margins)
    if config.verify_policy == "confidence":
        product, kept = 1.0, 0
        for survival in block.confidence:
            product *= survival
            if product < config.confidence_threshold:
                break
            kept += 1
        return kept
    return len(block.tokens)


def accepted(drafts: Sequence[int], targets: Sequence[int]) -> int:
    """Length of the longest prefix of `drafts` that the `targets` confirm, one by one.

    `targets[j]` is the target's own choice after the first j drafts.
    """
    return _run(draft == target for draft, target in zip(drafts, targets, strict=False))


def confirmed(logits: Tensor, drafts: Sequence[int], sampler: Sampler, position: int) -> list[int]:
    """The target's tokens from `position` on by `logits` [1 + drafts, vocab]: the confirmed drafts
    and the first token of its own."""
    targets: list[int] = []
    for row in logits:
        targets.append(sampler.choose(row, position + len(targets)))
        if accepted(drafts, targets) < len(targets):
            break
    return targets


def _run(flags: Iterable[bool]) -> int:
    """How many flags are true before the first that is not."""
    count = 0
    for flag in flags:
        if not flag:
            break
        count += 1
    return count
