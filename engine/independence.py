"""Does this machine give a row the same bits whatever shares its step? Tried, never assumed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.model import Backbone
from engine.state import TILE, State


def rows_are_independent(backbone: Backbone) -> bool:
    """Whether this machine's products give a row the same bits alone and among others.

    A lone row is padded to the row tile; the others come in every number that a round may verify.
    """
    state = State(backbone.geometry, backbone.config)
    most = max(backbone.config.row_tile, backbone.config.draft_width + 1)
    ids = (torch.arange(5 + most) * 37 + 11) % backbone.geometry.vocab_size
    with torch.inference_mode():
        backbone.forward(ids[:5], state)
        state.commit(5)
        together = []
        for count in range(2, most + 1):
            together.append(backbone.logits(backbone.forward(ids[5 : 5 + count], state)))
            state.rollback()
        for row in range(most):
            alone = backbone.logits(backbone.forward(ids[5 + row : 6 + row], state))
            state.commit(1)
            if not all(torch.equal(alone[0], t[row]) for t in together if row < t.shape[0]):
                return False
    return True


@torch.inference_mode()
def sequences_are_independent(backbone: Backbone, most: int) -> bool:
    """Whether rows have the bits of a step of their own when 2 to `most` sequences share one."""
    config, vocabulary = backbone.config, backbone.geometry.vocab_size
    width = config.draft_width + 1
    ids = (torch.arange(TILE * 4 + most + width) * 37 + 11) % vocabulary
    work: list[tuple[Tensor, State]] = []
    alone: list[Tensor] = []
    for place in range(most):
        state = State(backbone.geometry, config)
        length = min(TILE + 1 + place, config.context - width)
        backbone.forward(ids[:length], state)
        state.commit(length)
        own = ids[length : length + 1 + (width - 1 + place) % width]
        alone.append(backbone.logits(backbone.forward(own, state)))
        state.rollback()
        work.append((own, state))
        if place and not _equal_together(backbone, work, alone):
            return False
    return True


def _equal_together(
    backbone: Backbone, work: Sequence[tuple[Tensor, State]], alone: Sequence[Tensor]
) -> bool:
    forward, joint = backbone.forward_together(work)
    logits = backbone.logits(forward)
    for _, state in work:
        state.rollback()
    pairs = zip(joint.rows, alone, strict=True)
    return all(torch.equal(logits[rows], own) for rows, own in pairs)
