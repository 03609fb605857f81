"""One drafted token: the head's scores, moved by what the token before it says."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.oracle.best import best


class Draft(NamedTuple):
    """A drafted slot."""

    scores: Tensor  # float32 [v]
    token: Tensor  # int64 [1]: the best, of equals the lowest
    margin: Tensor  # float32 [1]: the best score less the second
    confidence: Tensor  # float32 [1], between 0 and 1


def step(
    base: Tensor, previous: Tensor, hidden: Tensor, w1: Tensor, w2: Tensor, confidence: Tensor
) -> Draft:
    """`base` [v] plus `w2` [v, rank] times the `previous` token's row of `w1` [v, rank].

    `previous` int64 [1]; `hidden` [d] is the slot's vector before the final norm. The slot's
    confidence is the sigmoid of `confidence` [1, d + rank] times `hidden` and the row of `w1`.
    """
    wide = torch.promote_types(hidden.dtype, torch.float32)
    row = w1[previous[0]].to(wide)
    moved = (base.to(wide) + w2.to(wide) @ row).float()
    found = best(moved[None])
    raw = confidence.to(wide) @ torch.cat((hidden.to(wide), row))
    return Draft(moved, found.token, found.margin, torch.sigmoid(raw).float())
