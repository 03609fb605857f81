"""Attention over one shared key/value row per position, with a sink in the denominator."""

from __future__ import annotations

import torch
from torch import Tensor


def weights(scores: Tensor, mask: Tensor, sink: Tensor) -> Tensor:
    """Softmax of `scores` [..., h, k] over the keys where `mask` [..., 1, k]; `sink` [h] adds mass.

    Masked keys weigh exactly zero, so their values only have to be finite.
    """
    scores = scores.float().masked_fill(~mask, float("-inf"))
    largest = torch.maximum(scores.amax(-1), sink)[..., None]
    mass = torch.exp(scores - largest)
    return mass / (mass.sum(-1, keepdim=True) + torch.exp(sink[..., None] - largest))


def attend(queries: Tensor, rows: Tensor, mask: Tensor, sink: Tensor, scale: float) -> Tensor:
    """`queries` [..., h, d] over `rows` [..., k, d] (keys and values at once) -> [..., h, d].

    `mask` [..., 1, k] broadcasts over heads. Every query position brings its own rows or shares
    them by broadcasting.
    """
    share = weights(queries.float() @ rows.float().transpose(-1, -2) * scale, mask, sink)
    return (share @ rows.float()).to(queries.dtype)
