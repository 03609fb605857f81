"""Attention over one shared key/value row per position, with a sink in the denominator."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.oracle import packed, rotary
from kernels.packed import Rows


def weights(scores: Tensor, mask: Tensor, sink: Tensor) -> Tensor:
    """Softmax of `scores` [..., h, k] over the keys where `mask` [..., 1, k]; `sink` [h] adds mass.

    Masked keys weigh exactly zero, so their values only have to be finite.
    """
    scores = scores.masked_fill(~mask, float("-inf"))
    largest = torch.maximum(scores.amax(-1), sink)[..., None]
    mass = torch.exp(scores - largest)
    return mass / (mass.sum(-1, keepdim=True) + torch.exp(sink[..., None] - largest))


def mix(queries: Tensor, rows: Tensor, mask: Tensor, sink: Tensor, scale: float) -> Tensor:
    """`queries` [..., h, d] over `rows` [..., k, d] (keys and values at once) -> [..., h, d].

    `mask` [..., 1, k] broadcasts over heads. Every query position brings its own rows or shares
    them by broadcasting. Float32, or float64 where the queries are.
    """
    kind = torch.promote_types(queries.dtype, torch.float32)
    queries, rows = queries.to(kind), rows.to(kind)
    return weights(queries @ rows.transpose(-1, -2) * scale, mask, sink.to(kind)) @ rows


def attend(
    queries: Tensor,
    ring: Tensor,
    rows: Rows | None,
    indices: Tensor | None,
    sink: Tensor,
    cos: Tensor,
    sin: Tensor,
    position: Tensor,
    *,
    window: int,
    ratio: int,
    scale: float,
) -> Tensor:
    """Twin of `kernels.attention.attend`."""
    at = _positions(queries, position)
    slot = torch.arange(ring.shape[0], device=ring.device)
    age = (at[:, None] - slot) % ring.shape[0]
    near = (age < window) & (age <= at[:, None])
    keys = ring.expand(at.numel(), -1, -1)
    return _finish(queries, keys, near, rows, indices, sink, cos, sin, at, ratio, scale)


def attend_long(
    queries: Tensor,
    kv: Tensor,
    rows: Rows | None,
    indices: Tensor | None,
    sink: Tensor,
    cos: Tensor,
    sin: Tensor,
    position: Tensor,
    *,
    window: int,
    ratio: int,
    scale: float,
) -> Tensor:
    """Twin of `kernels.attention.attend_long`."""
    at = _positions(queries, position)
    lane = torch.arange(window, device=kv.device)
    keys = kv[torch.arange(at.numel(), device=kv.device)[:, None] + lane]
    near = at[:, None] - (window - 1) + lane >= 0
    return _finish(queries, keys, near, rows, indices, sink, cos, sin, at, ratio, scale)


def attend_block(
    queries: Tensor,
    ring: Tensor,
    block: Tensor,
    sink: Tensor,
    cos: Tensor,
    sin: Tensor,
    length: Tensor,
    *,
    scale: float,
) -> Tensor:
    """Twin of `kernels.attention.attend_block`."""
    at = _positions(queries, length)
    context = torch.arange(ring.shape[0], device=ring.device) < length
    seen = torch.cat((context, context.new_ones(block.shape[0]))).expand(at.numel(), -1)
    keys = torch.cat((ring, block)).expand(at.numel(), -1, -1)
    return _finish(queries, keys, seen, None, None, sink, cos, sin, at, 0, scale)


def _positions(queries: Tensor, position: Tensor) -> Tensor:
    return position + torch.arange(queries.shape[0], device=queries.device)


def _finish(
    queries: Tensor,
    keys: Tensor,
    seen: Tensor,
    rows: Rows | None,
    indices: Tensor | None,
    sink: Tensor,
    cos: Tensor,
    sin: Tensor,
    at: Tensor,
    ratio: int,
    scale: float,
) -> Tensor:
    """The sum over `keys` [m, k, d] where `seen` [m, k] and over compressed rows, turned back."""
    if rows is not None:
        wide = packed.plain(rows, keys.dtype)
        if indices is None:
            count = torch.arange(wide.shape[0], device=wide.device)
            far, visible = wide.expand(at.numel(), -1, -1), count < (at[:, None] + 1) // ratio
        else:
            far, visible = wide[indices.clamp_min(0).long()], indices >= 0
        keys, seen = torch.cat((keys, far), 1), torch.cat((seen, visible), 1)
    # What nobody wrote may hold anything, and zero times NaN is NaN.
    keys = keys.masked_fill(~seen[..., None], 0.0)
    mixed = mix(queries, keys, seen[:, None], sink, scale)
    turned = rotary.rotate(mixed, cos[at][:, None], sin[at][:, None], inverse=True)
    return turned.to(queries.dtype)
