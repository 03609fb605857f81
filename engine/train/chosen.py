"""Routed experts that no training changes: held as they lie on disk, and only the chosen computed.

Rows are sorted by expert; each used expert is decoded for its rows, a few at a time, once forward
and once more backward, so that no decoded expert stays in memory. The host must know how many rows
an expert has, so it waits for the device: none of this can be recorded as a CUDA graph.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.formats import FP4_GROUP, decode_e8m0
from engine.weights import MoeWeights
from kernels.oracle import moe
from kernels.oracle.rounding import E2M1_VALUES

# Of one decoded matrix of the experts that are computed together; a backward holds three, and as
# much again while it decodes.
TOGETHER_BYTES = 256 << 20
# Two values of a byte of codes are looked up as one number of their joint width.
_JOINT = {torch.bfloat16: torch.int32, torch.float32: torch.int64}


def decoded(codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """`formats.decode_mxfp4` to `dtype` (bfloat16 or float32), which loses nothing either way.

    `codes` packed E2M1 [..., k / 2], `scale` E8M0 [..., k / 32] -> [..., k].
    """
    numbers = codes.view(torch.uint8).flatten().int()
    values = _pairs(dtype, codes.device).index_select(0, numbers).view(dtype)
    factors = decode_e8m0(scale).to(dtype)
    values.view(-1, FP4_GROUP).mul_(factors.view(-1, 1))
    return values.view(*codes.shape[:-1], -1)


@functools.cache  # or every use would wait for its way to the device
def _pairs(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Both values of each byte of codes, as one number [256]."""
    signed = torch.tensor(E2M1_VALUES + tuple(-v for v in E2M1_VALUES), dtype=dtype)
    byte = torch.arange(256)
    pairs = torch.stack((signed[byte & 15], signed[byte >> 4]), -1)
    return pairs.view(_JOINT[dtype]).flatten().to(device)


def combined(x: Tensor, chosen: Tensor, shares: Tensor, w: MoeWeights, limit: float) -> Tensor:
    """Sum of the `chosen` experts [r, k] on each row of `x` [r, d], weighted by `shares` [r, k].

    `w` holds its experts packed; gradients are those of `x` and of the float32 `shares`.
    """
    routed: Tensor = _Combined.apply(x, shares, chosen, w, limit)
    return routed


@dataclass(frozen=True, slots=True)
class _Group:
    """Experts that are computed together, and each one's pairs of a row and a choice.

    A pair is numbered row * k + choice; r * k, which is no pair, fills up to the most that any has.
    """

    experts: Tensor  # int64 [n]
    pairs: Tensor  # int64 [n, most]


def _groups(chosen: Tensor, w: MoeWeights, dtype: torch.dtype) -> Iterator[_Group]:
    """The used experts, those with about as many pairs together. Waits for the device, once."""
    flat = chosen.flatten()
    counts = torch.bincount(flat, minlength=len(w.w1))
    by_expert = flat.argsort(stable=True)
    firsts = counts.cumsum(0) - counts
    counted = counts.tolist()
    used = sorted((e for e, n in enumerate(counted) if n), key=lambda e: -counted[e])
    ordered = torch.tensor(used, device=chosen.device)
    together = max(1, TOGETHER_BYTES // (2 * w.w1[0].numel() * dtype.itemsize))
    for at in range(0, len(used), together):
        experts = ordered[at : at + together]
        place = torch.arange(counted[used[at]], device=chosen.device)
        where = (firsts[experts, None] + place).clamp_max(len(flat) - 1)
        real = place < counts[experts, None]
        yield _Group(experts, torch.where(real, by_expert[where], len(flat)))


class _Matrices:
    """The matrices of a group's experts, decoded when asked for."""

    def __init__(self, w: MoeWeights, experts: Tensor, dtype: torch.dtype) -> None:
        self._w, self._experts, self._dtype = w, experts, dtype

    def __getitem__(self, name: str) -> Tensor:
        """[n, rows, columns]."""
        # As bytes: not every operation knows the narrow types.
        codes, scale = (
            getattr(owner, name).view(torch.uint8)[self._experts]
            for owner in (self._w, self._w.scales)
        )
        return decoded(codes, scale, self._dtype)


class _Combined(torch.autograd.Function):
    """The operation of `combined`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shares: Tensor, chosen: Tensor, w: MoeWeights, limit: float
    ) -> Tensor:
        groups = tuple(_groups(chosen, w, x.dtype))
        rows, weights = _filled(x), _filled(shares.flatten())
        parts = x.new_zeros(chosen.numel() + 1, x.shape[1])
        for group in groups:
            matrices = _Matrices(w, group.experts, x.dtype)
            mine = rows[group.pairs // chosen.shape[1]]
            gate, up = mine @ matrices["w1"].mT, mine @ matrices["w3"].mT
            hidden = _hidden(gate, up, weights[group.pairs], limit)
            _put(parts, group.pairs, hidden @ matrices["w2"].mT)
        ctx.save_for_backward(x, shares)
        ctx.groups, ctx.w, ctx.limit = groups, w, limit
        return _summed(parts, chosen.shape[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, shares = ctx.saved_tensors
        k = shares.shape[1]
        rows, weights, above = _filled(x), _filled(shares.flatten()), _filled(gradients[0])
        parts, of_shares = x.new_zeros(shares.numel() + 1, x.shape[1]), torch.zeros_like(weights)
        for group in ctx.groups:
            matrices = _Matrices(ctx.w, group.experts, x.dtype)
            row = group.pairs // k
            w1, w3 = matrices["w1"], matrices["w3"]
            leaves = (rows[row] @ w1.mT, rows[row] @ w3.mT, weights[group.pairs])
            with torch.enable_grad():
                gate, up, share = (t.detach().requires_grad_() for t in leaves)
                hidden = _hidden(gate, up, share, ctx.limit)
            of_hidden = above[row] @ matrices["w2"]
            of_gate, of_up, of_share = torch.autograd.grad(hidden, (gate, up, share), of_hidden)
            _put(parts, group.pairs, of_gate @ w1 + of_up @ w3)
            of_shares[group.pairs] = of_share
        return _summed(parts, k), of_shares[:-1].view_as(shares), None, None, None


def _hidden(gate: Tensor, up: Tensor, share: Tensor, limit: float) -> Tensor:
    """Weighted hidden rows [n, most, i] of `gate`, `up` [n, most, i] and `share` [n, most]."""
    return (moe.swiglu(gate, up, limit) * share[..., None]).to(gate.dtype)


def _filled(x: Tensor) -> Tensor:
    """`x` with a last row of zeros, which the pairs that are none read."""
    return torch.cat((x, x.new_zeros(1, *x.shape[1:])))


def _put(parts: Tensor, pairs: Tensor, values: Tensor) -> None:
    """Write `values` [n, most, d] where their `pairs` are in `parts` [r k + 1, d]."""
    parts[pairs.flatten()] = values.flatten(0, 1)


def _summed(parts: Tensor, k: int) -> Tensor:
    """[r, d]: the k parts of each row, added up in float32."""
    return parts[:-1].unflatten(0, (-1, k)).sum(1, dtype=torch.float32).to(parts.dtype)
