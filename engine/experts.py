"""The mixture-of-experts sublayer, in three ways that give the same rows.

loop   one active expert at a time, over every row of the step, weighted by zero where not chosen
fused  the same with the gate and up matrices in one product
dense  every expert at once, as batched products
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from engine.geometry import Geometry
from engine.numerics import Numerics
from engine.weights import MoeWeights
from kernels.oracle import moe


class Experts:
    """The sublayer for one geometry and configuration."""

    def __init__(self, geometry: Geometry, numerics: Numerics, kind: str) -> None:
        self._g = geometry
        self._numerics = numerics
        self._kind = kind
        self._pairs: dict[int, Tensor] = {}  # gate and up matrices joined, by layer's storage

    def __call__(self, x: Tensor, w: MoeWeights, ids: Tensor, count: int) -> Tensor:
        """`x` [rows, hidden], token `ids` [rows]; the first `count` rows are real."""
        chosen, weights = self.route(x, w, ids)
        shared_in = self._numerics.activation(x)
        shared = moe.swiglu(
            linear(shared_in, w.shared_w1), linear(shared_in, w.shared_w3), self._g.swiglu_limit
        )
        shared = self._numerics.product(shared.to(x.dtype), w.shared_w2)
        return self._routed(shared_in, w, chosen, weights, count).to(x.dtype) + shared

    def route(self, x: Tensor, w: MoeWeights, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Chosen experts [rows, k] and their weights."""
        g = self._g
        scores = moe.affinity(linear(x.float(), w.gate.float()))
        if w.experts_by_token is not None:
            chosen = w.experts_by_token[ids]
        else:
            assert w.bias is not None
            chosen = moe.choose(scores, w.bias, g.num_experts_per_tok)
        return chosen, moe.route(scores, chosen, g.routed_scaling_factor)

    def _routed(
        self, x: Tensor, w: MoeWeights, chosen: Tensor, weights: Tensor, count: int
    ) -> Tensor:
        spread = moe.spread(chosen, weights, self._g.n_routed_experts)
        if self._kind == "dense":
            return self._dense(x, w, spread)
        total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for expert in chosen[:count].unique().tolist():
            share = spread[:, expert : expert + 1]
            if x.shape[0] > 2 * 8:  # prefill: only the rows that chose it
                rows = share[:, 0].nonzero().squeeze(-1)
                part = self._expert(x[rows], w, expert, share[rows])
                total.index_add_(0, rows, part.float())
            else:
                total += self._expert(x, w, expert, share)
        return total

    def _expert(self, x: Tensor, w: MoeWeights, expert: int, share: Tensor) -> Tensor:
        if self._kind == "fused":
            gate, up = linear(x, self._pair(w)[expert]).chunk(2, -1)
        else:
            gate, up = linear(x, w.w1[expert]), linear(x, w.w3[expert])
        hidden = moe.swiglu(gate, up, self._g.swiglu_limit) * share
        return self._numerics.product(hidden.to(x.dtype), w.w2[expert])

    def _dense(self, x: Tensor, w: MoeWeights, spread: Tensor) -> Tensor:
        wide = x.expand(w.w1.shape[0], -1, -1)
        gate = torch.bmm(wide, w.w1.transpose(1, 2))
        up = torch.bmm(wide, w.w3.transpose(1, 2))
        hidden = moe.swiglu(gate, up, self._g.swiglu_limit) * spread.t()[..., None]
        hidden = self._numerics.activation(hidden.to(x.dtype))
        return torch.bmm(hidden, w.w2.transpose(1, 2)).float().sum(0)

    def _pair(self, w: MoeWeights) -> Tensor:
        key = w.w1.data_ptr()
        if key not in self._pairs:
            self._pairs[key] = torch.cat((w.w1, w.w3), 1)
        return self._pairs[key]
