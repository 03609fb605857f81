"""Which experts a row visits, and with what weights."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.oracle import moe


def choose(logits: Tensor, bias: Tensor, count: int, *, scale: float) -> tuple[Tensor, Tensor]:
    """The `count` best experts int64 [m, count] by affinity + `bias` [e], best first; weights.

    `logits` float32 [m, e]; of equals the lower expert comes first. The float32 weights are shares
    of the chosen affinities, without the bias, times `scale`.
    """
    scores = moe.affinity(logits)
    ranked = torch.sort(scores + bias.float(), dim=-1, descending=True, stable=True).indices
    chosen = ranked[..., :count].contiguous()
    return chosen, moe.route(scores, chosen, scale)


def look_up(
    logits: Tensor, tokens: Tensor, table: Tensor, *, scale: float
) -> tuple[Tensor, Tensor]:
    """Experts int64 [m, count] of `tokens` [m] in `table` int64 [vocabulary, count]; weights."""
    chosen = table[tokens]
    return chosen, moe.route(moe.affinity(logits), chosen, scale)
