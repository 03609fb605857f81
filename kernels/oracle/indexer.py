"""Which compressed rows a query attends to."""

from __future__ import annotations

import torch
from torch import Tensor


def scores(queries: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
    """score(t, w) = sum over heads of weights * relu(q . k).

    `queries` [..., t, h, d], `keys` [..., w, d], `weights` [..., t, h] -> float32 [..., t, w].
    """
    dots = torch.relu(queries.float() @ keys.float().unsqueeze(-3).transpose(-1, -2))
    return (weights.float().unsqueeze(-2) @ dots).squeeze(-2)


def select(score: Tensor, visible: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` best visible rows of `score` [..., w], in ascending order of row.

    `visible` [..., 1] counts the rows a query may see (rows 0 .. visible - 1). Returns indices
    [..., count] and a mask of the real ones; ascending order keeps later sums canonical.
    """
    rows = torch.arange(score.shape[-1], device=score.device)
    score = score.masked_fill(rows >= visible, float("-inf"))
    chosen = score.topk(min(count, score.shape[-1]), -1).indices.sort(-1).values
    return chosen, chosen < visible
