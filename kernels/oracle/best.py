"""The best of a row of scores, and how far the next one is."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Best(NamedTuple):
    """Of every row of scores."""

    token: Tensor  # int64 [m]: of equals the lowest
    margin: Tensor  # float32 [m]: the best score less the second
    finite: Tensor  # bool [m]: whether every score is a finite number


def best(scores: Tensor) -> Best:
    """Of `scores` [m, v], v > 1; a score that is no number counts as the lowest."""
    ranked = scores.masked_fill(scores.isnan(), float("-inf"))
    top = ranked.topk(2, -1).values
    # The first of equals: topk and a device's argmax may name any of them.
    token = (ranked == top[:, :1]).to(torch.uint8).argmax(-1)
    return Best(token, (top[:, 0] - top[:, 1]).float(), scores.isfinite().all(-1))
