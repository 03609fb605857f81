"""The mixture-of-experts sublayer, in three ways that give the same rows.

loop   one active expert at a time, over every row of the step, weighted by zero where not chosen
fused  the same with the gate and up matrices in one product
dense  every expert at once, as batched products; the only one without a host's decision in it
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from engine.config import EngineConfig
from engine.geometry import Geometry
from engine.numerics import Numerics
from engine.state import TILE
from engine.weights import MoeWeights
from kernels.oracle import moe


class Experts:
    """The sublayer for one geometry and configuration."""

    def __init__(self, geometry: Geometry, numerics: Numerics, config: EngineConfig) -> None:
        self._g = geometry
        self._numerics = numerics
        self._kind = config.moe
        self._pairs: dict[int, Tensor] = {}  # gate and up matrices joined, by layer's storage

    def __call__(self, x: Tensor, w: MoeWeights, given: Tensor | None, count: int) -> Tensor:
        """`x` [rows, hidden], of which the first `count` are real.

        `given` [rows, k] names the experts of a hash-routed layer; elsewhere the router chooses.
        """
        chosen, spread = self.route(x, w, given)
        shared = self._shared(x, w)
        if self._kind == "dense":
            return shared + self._dense(x, spread, w)
        total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        matrices = self._matrices(w)
        for expert in chosen[:count].unique().tolist():
            share = spread[:, expert : expert + 1]
            if x.shape[0] > TILE:  # prefill: only the rows that chose it
                rows = share[:, 0].nonzero().squeeze(-1)
                part = self._expert(x[rows], share[rows], *(m[expert] for m in matrices))
                total.index_add_(0, rows, part.float())
            else:
                total += self._expert(x, share, *(m[expert] for m in matrices))
        return shared + total.to(x.dtype)

    def route(self, x: Tensor, w: MoeWeights, given: Tensor | None) -> tuple[Tensor, Tensor]:
        """Chosen experts [rows, k], `given` or picked, and weights of all [rows, experts]."""
        g = self._g
        scores = moe.affinity(linear(x.float(), w.gate.float()))
        if given is None:
            assert w.bias is not None
            given = moe.choose(scores, w.bias, g.num_experts_per_tok)
        weights = moe.route(scores, given, g.routed_scaling_factor)
        return given, moe.spread(given, weights, g.n_routed_experts)

    def _shared(self, x: Tensor, w: MoeWeights) -> Tensor:
        entering = self._numerics.activation(x)
        gate, up = linear(entering, w.shared_w1), linear(entering, w.shared_w3)
        hidden = moe.swiglu(gate, up, self._g.swiglu_limit)
        return self._numerics.product(hidden.to(x.dtype), w.shared_w2)

    def _expert(
        self, x: Tensor, share: Tensor, w1: Tensor, w2: Tensor, w3: Tensor | None = None
    ) -> Tensor:
        """One expert's part of every row; without `w3`, `w1` holds gate and up joined."""
        entering = self._numerics.activation(x)
        if w3 is None:
            gate, up = linear(entering, w1).chunk(2, -1)
        else:
            gate, up = linear(entering, w1), linear(entering, w3)
        hidden = moe.swiglu(gate, up, self._g.swiglu_limit) * share
        return self._numerics.product(hidden.to(x.dtype), w2)

    def _dense(self, x: Tensor, spread: Tensor, w: MoeWeights) -> Tensor:
        wide = self._numerics.activation(x).expand(w.w1.shape[0], -1, -1)
        gate = torch.bmm(wide, w.w1.transpose(1, 2))
        up = torch.bmm(wide, w.w3.transpose(1, 2))
        hidden = moe.swiglu(gate, up, self._g.swiglu_limit) * spread.t()[..., None]
        hidden = self._numerics.activation(hidden.to(x.dtype))
        return torch.bmm(hidden, w.w2.transpose(1, 2)).float().sum(0).to(x.dtype)

    def _matrices(self, w: MoeWeights) -> tuple[Tensor, ...]:
        """The stacked matrices of all experts, in the order that `_expert` takes them."""
        if self._kind == "loop":
            return w.w1, w.w2, w.w3
        key = w.w1.data_ptr()
        if key not in self._pairs:
            self._pairs[key] = torch.cat((w.w1, w.w3), 1)
        return self._pairs[key], w.w2
