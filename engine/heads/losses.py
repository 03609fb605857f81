"""What a block of drafts is blamed for. All tensors are [B, A, S, ...]: sequence, anchor, slot.

Every loss compares the head's distribution with the target's own at the same position, which
follows from the captured input of the LM head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from engine.heads.captured import Batch
from engine.heads.recipe import Recipe
from engine.train.forward import Blocks, Forward, confidence, markov
from engine.weights import Weights

DEFICIT_CAP = 3.0


@dataclass(frozen=True, slots=True)
class Slots:
    """Where the slots of a batch's blocks lie, and what the target says there."""

    given: Tensor  # int64 [B, A, S]: the sequence's token before each draft
    truth: Tensor  # int64 [B, A, S]: the sequence's token that each draft should be
    wanted: Tensor  # float32 [B, A, S, vocab]: the target's distribution of it
    real: Tensor  # bool [B, A, S]: the draft's place is inside the sequence


@dataclass(frozen=True, slots=True)
class Drafted:
    """What a head says of a batch's slots."""

    log: Tensor  # float32 [B, A, S, vocab]: log-probabilities
    trust: Tensor  # float32 [B, A, S]: logit of its confidence
    accepted: Tensor  # bool [B, A, S]: greedily, this draft and all before it are the truth


def slots(batch: Batch, forward: Forward, weights: Weights, width: int) -> Slots:
    """The `width` slots after each anchor of `batch`."""
    rows = torch.arange(len(batch.ids), device=batch.ids.device)[:, None, None]
    at = batch.anchors[..., None] + 1 + torch.arange(width, device=batch.ids.device)
    real = at <= batch.lengths[:, None, None] - 2
    at = at.clamp_max(batch.taps.shape[1] - 1)
    with torch.no_grad():
        hidden = batch.hidden[rows, at].to(weights.head.dtype)
        wanted = torch.softmax(forward.logits(weights, hidden), -1)
    return Slots(batch.ids[rows, at], batch.ids[rows, at + 1], wanted, real)


def drafted(weights: Weights, blocks: Blocks, where: Slots, *, hass_from: int = 0) -> Drafted:
    """The head's word on each slot, reading the truth before it, or from `hass_from` on itself.

    Acceptance is always that of free-running greedy drafts: as long as every draft was the truth,
    the two are the same.
    """
    width = where.truth.shape[-1]
    base, hidden = blocks.base[..., :width, :], blocks.hidden[..., :width, :].detach()
    read = where.given if not hass_from else _own(weights, base, where.given, hass_from)
    bias, embedded = markov(weights, read)
    scores = base + bias
    right = scores.argmax(-1) == where.truth
    if hass_from:
        right = right & (read == where.given)
    accepted = (right & where.real).long().cumprod(-1).bool()
    trust = confidence(weights, hidden, embedded.detach())
    return Drafted(torch.log_softmax(scores, -1), trust, accepted)


def total(
    recipe: Recipe, mine: Drafted, where: Slots, start: Drafted | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss to minimise, and its parts as scalars.

    `start` is what the starting head says of the same slots; it is needed when `recipe.anchor` is.
    """
    real = where.real.float()
    weight = slot_weights(real, recipe.decay)
    if recipe.deficit:
        weight = weight * deficit(accepted_fraction(mine, where))[..., None]
    weight = weight / weight.sum().clamp_min(1e-6)
    crossed = -(where.wanted * mine.log).sum(-1)
    varied = 0.5 * (where.wanted - mine.log.exp()).abs().sum(-1)
    loss = (weight * (recipe.cross_entropy * crossed + recipe.total_variation * varied)).sum()
    parts = {"ce": _mean(crossed, real), "tv": _mean(varied, real)}
    if start is not None and recipe.anchor:
        pull = anchor(mine, start, where, recipe.decay)
        loss = loss + recipe.anchor * pull
        parts["kl"] = pull.detach()
    if recipe.confidence:
        sure = survival(mine, where, recipe.decay)
        loss = loss + recipe.confidence * sure
        parts["confidence"] = sure.detach()
    parts["accepted"] = mine.accepted.sum() / real.sum().clamp_min(1.0)
    return loss, {"loss": loss.detach(), **parts}


def slot_weights(real: Tensor, decay: float) -> Tensor:
    """Weight of each slot: 1 for the first of a block, falling by e every `decay` slots."""
    place = torch.arange(real.shape[-1], device=real.device)
    return real * torch.exp(-place / decay)


def accepted_fraction(mine: Drafted, where: Slots) -> Tensor:
    """r [B, A]: how much of each block the target would accept; 0 for a block without slots."""
    return mine.accepted.float().sum(-1) / where.real.float().sum(-1).clamp_min(1.0)


def deficit(r: Tensor) -> Tensor:
    """min((1 - r) / mean(1 - r), 3): blocks that fail count more. All 1 when none fails."""
    missing = 1.0 - r
    mean = missing.mean()
    # No branch: the host would have to wait for the mean.
    weighed = (missing / mean.clamp_min(torch.finfo(mean.dtype).tiny)).clamp_max(DEFICIT_CAP)
    return torch.where(mean > 0, weighed, 1.0)


def anchor(mine: Drafted, start: Drafted, where: Slots, decay: float) -> Tensor:
    """KL(head || starting head), by how much of each block the starting head got right."""
    apart = (mine.log.exp() * (mine.log - start.log)).sum(-1)
    weight = slot_weights(where.real.float(), decay)
    each = (weight * apart).sum(-1) / weight.sum(-1).clamp_min(1e-6)
    return (accepted_fraction(start, where) * each).mean()


def survival(mine: Drafted, where: Slots, decay: float) -> Tensor:
    """Loss of the confidence head: does a draft survive, where all before it did?"""
    before = torch.ones_like(mine.accepted[..., :1])
    reached = torch.cat((before, mine.accepted[..., :-1]), -1) & where.real
    weight = slot_weights(reached.float(), decay)
    each = binary_cross_entropy_with_logits(mine.trust, mine.accepted.float(), reduction="none")
    return (weight * each).sum() / weight.sum().clamp_min(1e-6)


def _own(weights: Weights, base: Tensor, given: Tensor, first: int) -> Tensor:
    """`given` with the head's own drafts from slot `first` on."""
    read = [given[..., 0]]
    with torch.no_grad():
        for slot in range(1, base.shape[-2]):
            bias, _ = markov(weights, read[-1])
            own = (base[..., slot - 1, :] + bias).argmax(-1)
            read.append(own if slot >= first else given[..., slot])
    return torch.stack(read, -1)


def _mean(values: Tensor, real: Tensor) -> Tensor:
    return ((values * real).sum() / real.sum().clamp_min(1.0)).detach()
