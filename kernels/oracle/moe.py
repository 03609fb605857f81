"""Mixture of experts: routing, the clamped SwiGLU, and the weighted sum of the chosen experts."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear, silu, softplus

from kernels.oracle.weight import decode_fp8, decode_mxfp4


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


def shares(chosen: Tensor, weights: Tensor) -> Tensor:
    """`weights` [m, t] with a repeated expert's weights added up in its first slot, zero after."""
    same = chosen[..., :, None] == chosen[..., None, :]
    first = ~same.tril(-1).any(-1)
    return (same * weights[..., None, :]).sum(-1) * first


def gate_up(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    w13: Tensor,
    s13: Tensor,
    shared: Tensor,
    shared_scale: Tensor,
    *,
    limit: float,
    begun: Tensor | None = None,
) -> Tensor:
    """Hidden rows [m, t + 1, i] for `x` [m, d]: the `chosen` [m, t], weighted, then the shared one.

    `w13` packed MXFP4 [e, 2 i, d / 2], gate rows first, `s13` E8M0 [e, 2 i, d / 32]; `shared` E4M3
    [2 i, d] likewise with its `shared_scale` E8M0 [ceil(2 i / 128), ceil(d / 128)]. A repeated
    expert's weights meet in its first slot; its other slots are zero. `begun` rows have the shared
    expert's already, are completed, and returned.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    matrices = decode_mxfp4(w13, s13).to(wide)
    gate, up = torch.einsum("md,mtid->mti", x.to(wide), matrices[chosen.long()]).chunk(2, -1)
    hidden = begun
    if hidden is None:
        hidden = begin(x, shared, shared_scale, slots=chosen.shape[1], limit=limit)
    hidden[:, :-1] = swiglu(gate, up, limit) * shares(chosen, weights)[..., None]
    return hidden


def begin(x: Tensor, shared: Tensor, shared_scale: Tensor, *, slots: int, limit: float) -> Tensor:
    """Rows [m, slots + 1, i] for `gate_up` to complete: the shared expert's, in the last slot.

    `shared` E4M3 [2 i, d], gate rows first, `shared_scale` E8M0; the other slots are zero.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    gate, up = linear(x.to(wide), decode_fp8(shared, shared_scale).to(wide)).chunk(2, -1)
    hidden = x.new_zeros((x.shape[0], slots + 1, gate.shape[1]))
    hidden[:, -1] = swiglu(gate, up, limit)
    return hidden


def down(
    hidden: Tensor, chosen: Tensor, w2: Tensor, s2: Tensor, shared: Tensor, shared_scale: Tensor
) -> Tensor:
    """Float32 parts [m, t + 1, d] of the output from `hidden` [m, t + 1, i], the shared one last.

    `w2` packed MXFP4 [e, d, i / 2], `s2` E8M0 [e, d, i / 32]; `shared` E4M3 [d, i] with its
    `shared_scale` E8M0 [ceil(d / 128), ceil(i / 128)]. Zero in a repeated expert's later slots.
    """
    wide = torch.promote_types(hidden.dtype, torch.float32)
    matrices = decode_mxfp4(w2, s2).to(wide)[chosen.long()]
    first = shares(chosen, torch.ones_like(chosen)) > 0
    routed = torch.einsum("mti,mtdi->mtd", hidden[:, :-1].to(wide), matrices) * first[..., None]
    common = linear(hidden[:, -1].to(wide), decode_fp8(shared, shared_scale).to(wide))
    return torch.cat((routed, common[:, None]), 1).float()
