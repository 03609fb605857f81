"""Which compressed rows a query attends to."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.oracle import packed
from kernels.packed import Rows


def scores(queries: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
    """score(t, w) = sum over heads of weights * relu(q . k).

    `queries` [..., t, h, d], `keys` [..., w, d], `weights` [..., t, h] -> [..., t, w], float32 or
    float64 as the queries are.
    """
    kind = torch.promote_types(queries.dtype, torch.float32)
    dots = torch.relu(queries.to(kind) @ keys.to(kind).unsqueeze(-3).transpose(-1, -2))
    return (weights.to(kind).unsqueeze(-2) @ dots).squeeze(-2)


def select(score: Tensor, visible: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` best visible rows of `score` [..., w], in ascending order of row.

    `visible` [..., 1] counts the rows a query may see (rows 0 .. visible - 1). Of equal scores the
    lower row wins. Returns indices [..., count] and a mask of the real ones; ascending order keeps
    later sums canonical.
    """
    rows = torch.arange(score.shape[-1], device=score.device)
    score = score.masked_fill(rows >= visible, float("-inf"))
    order = score.sort(dim=-1, descending=True, stable=True).indices
    chosen = order[..., : min(count, score.shape[-1])].sort(-1).values
    return chosen, chosen < visible


def choose(
    queries: Tensor, keys: Rows, weights: Tensor, position: Tensor, *, ratio: int, count: int
) -> Tensor:
    """Twin of `kernels.indexer.choose` and `choose_long`."""
    rows = queries.shape[0]
    visible = (position + torch.arange(rows, device=queries.device) + 1)[:, None] // ratio
    score = scores(queries, packed.plain(keys, queries.dtype), weights)
    chosen, real = select(score, visible, count)
    indices = torch.full((rows, count), -1, dtype=torch.int32, device=queries.device)
    indices[:, : chosen.shape[1]] = torch.where(real, chosen, -1)
    return indices
