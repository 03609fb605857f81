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


def route(
    x: Tensor,
    gate: Tensor,
    bias: Tensor | None,
    tokens: Tensor | None,
    table: Tensor | None,
    *,
    count: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Experts int64 [m, count] and their weights for `x` [m, d]; `gate` [e, d].

    By affinity and `bias` float32 [e], or those of `tokens` int64 [m] in `table` int64
    [vocabulary, count]. Logits are accumulated and left in float32.
    """
    wide = torch.promote_types(torch.promote_types(x.dtype, gate.dtype), torch.float32)
    logits = x.to(wide) @ gate.to(wide).t()
    if bias is not None:
        return choose(logits.float(), bias, count, scale=scale)
    assert tokens is not None
    assert table is not None
    return look_up(logits.float(), tokens, table, scale=scale)
