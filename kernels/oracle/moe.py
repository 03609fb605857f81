"""Mixture of experts: routing, the clamped SwiGLU, and the weighted sum of the chosen experts."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear, silu, softplus


def affinity(logits: Tensor) -> Tensor:
    """Routing affinity sqrt(softplus(logit)), float32."""
    return softplus(logits.float()).sqrt()


def route(scores: Tensor, chosen: Tensor, scale: float) -> Tensor:
    """Weights [..., k] of the `chosen` experts [..., k]: their share of `scores`, times `scale`."""
    picked = scores.gather(-1, chosen)
    return picked / picked.sum(-1, keepdim=True) * scale


def choose(scores: Tensor, bias: Tensor, count: int) -> Tensor:
    """The `count` experts with the largest score + bias; the bias never enters the weights."""
    return (scores + bias).topk(count, -1).indices


def swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """silu(min(gate, limit)) * clamp(up, -limit, limit), float32."""
    return silu(gate.float().clamp(max=limit)) * up.float().clamp(-limit, limit)


def expert(x: Tensor, w1: Tensor, w3: Tensor, w2: Tensor, limit: float) -> Tensor:
    """One feed-forward block: `w1`, `w3` [i, d], `w2` [d, i]; x [..., d] -> [..., d]."""
    return linear(swiglu(linear(x, w1), linear(x, w3), limit).to(x.dtype), w2)


def spread(chosen: Tensor, weights: Tensor, experts: int) -> Tensor:
    """Dense weights [..., experts] of `chosen`, `weights` [..., k]; a repeated expert adds up."""
    dense = weights.new_zeros(*weights.shape[:-1], experts)
    return dense.scatter_add(-1, chosen, weights)


def combine(x: Tensor, dense: Tensor, w1: Tensor, w3: Tensor, w2: Tensor, limit: float) -> Tensor:
    """Every expert on every row, weighted.

    x [t, d], `dense` [t, e], `w1`, `w3` [e, i, d], `w2` [e, d, i] -> [t, d].
    """
    hidden = (
        swiglu(torch.einsum("td,eid->eti", x, w1), torch.einsum("td,eid->eti", x, w3), limit)
        * dense.t()[..., None]
    )
    return torch.einsum("eti,edi->td", hidden.to(x.dtype), w2)
