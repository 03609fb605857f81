"""The mixture-of-experts sublayer, in three ways that give the same rows.

loop   one active expert at a time, over every row of the step, weighted by zero where not chosen
fused  the same with the gate and up matrices in one product
dense  every expert at once, as batched products; the only one without a host's decision in it
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from engine.config import EngineConfig
from engine.geometry import Geometry
from engine.numerics import Numerics
from engine.state import VECTOR
from engine.weights import MoeWeights, by_column
from kernels.oracle import moe


class Matrices(NamedTuple):
    """The experts of a layer as lists, the shared one last; `entering` reads the input."""

    entering: list[tuple[Tensor, ...]]  # gate and up matrices, apart or joined
    leaving: list[Tensor]


class Experts:
    """The sublayer for one geometry and configuration."""

    def __init__(self, geometry: Geometry, numerics: Numerics, config: EngineConfig) -> None:
        self._g = geometry
        self._numerics = numerics
        self._kind = config.moe
        self._matrices: dict[int, Matrices] = {}
        self._routers: dict[int, Tensor] = {}
        self._scale = torch.tensor(geometry.routed_scaling_factor)

    def __call__(
        self, x: Tensor, w: MoeWeights, given: Tensor | None, count: int, *, short: bool
    ) -> Tensor:
        """`x` [rows, hidden], of which the first `count` are real.

        `given` [rows, k] names the experts of a hash-routed layer; elsewhere the router chooses.
        The rows of a `short` step go through every active expert together, so that each has the
        same bits whatever its companions chose.
        """
        chosen, spread = self.route(x, w, given)
        entering = self._numerics.activation(x)
        if self._kind == "dense":
            return self._shared(entering, w).to(x.dtype) + self._dense(entering, spread, w)
        active = sorted({expert for row in chosen[:count].tolist() for expert in row})
        if not short:
            return self._long(entering, spread, active, w).to(x.dtype)
        shares = spread.t()[active, :, None]
        return self._short(entering, shares, active, w).to(x.dtype)

    def route(self, x: Tensor, w: MoeWeights, given: Tensor | None) -> tuple[Tensor, Tensor]:
        """Chosen experts [rows, k], `given` or picked, and weights of all [rows, experts]."""
        experts = self._g.n_routed_experts
        scores = moe.affinity(linear(x.float(), self._router(w)))[:, :experts].contiguous()
        if given is None:
            assert w.bias is not None
            given = moe.choose(scores, w.bias, self._g.num_experts_per_tok)
        picked = scores.gather(-1, given)
        weights = picked.div_(picked.sum(-1, keepdim=True)).mul_(self._scale)
        return given, torch.zeros_like(scores).scatter_add_(-1, given, weights)

    def prepare(self, w: MoeWeights) -> None:
        """Make now what is kept of `w`: code compiled before it is there is made twice."""
        self._router(w)

    def _router(self, w: MoeWeights) -> Tensor:
        """The router's matrix in float32, padded so that a row of scores fills whole vectors."""
        found = self._routers.get(id(w))
        if found is None:
            missing = -w.gate.shape[0] % VECTOR
            found = self._routers[id(w)] = by_column(pad(w.gate.float(), (0, 0, 0, missing)))
        return found

    def _short(self, x: Tensor, shares: Tensor, active: list[int], w: MoeWeights) -> Tensor:
        """Every active expert on every row, then the shared one; one SwiGLU for all."""
        entering, leaving = self._lists(w)
        every = [*active, -1]
        width = self._g.moe_intermediate_size * 2 // len(entering[-1])
        wide = x.new_empty(len(entering[-1]), len(every), x.shape[0], width)
        for place, expert in zip(wide.unbind(1), every, strict=True):
            for out, matrix in zip(place, entering[expert], strict=True):
                torch.mm(x, matrix.t(), out=out)
        gate, up = wide.unbind(0) if wide.shape[0] == 2 else wide[0].chunk(2, -1)
        hidden = moe.swiglu(gate, up, self._g.swiglu_limit)
        hidden[:-1] *= shares
        parts = self._numerics.activation(hidden.to(x.dtype)).unbind(0)
        total = linear(parts[-1], leaving[-1]).float()
        for part, expert in zip(parts, active, strict=False):
            total += linear(part, leaving[expert])
        return total

    def _long(self, x: Tensor, spread: Tensor, active: list[int], w: MoeWeights) -> Tensor:
        """Prefill: each expert on the rows that chose it."""
        total = self._shared(x, w).float()
        for expert in active:
            share = spread[:, expert : expert + 1]
            rows = share[:, 0].nonzero().squeeze(-1)
            gate, up = linear(x[rows], w.w1[expert]), linear(x[rows], w.w3[expert])
            hidden = moe.swiglu(gate, up, self._g.swiglu_limit) * share[rows]
            part = self._numerics.product(hidden.to(x.dtype), w.w2[expert])
            total.index_add_(0, rows, part.float())
        return total

    def _shared(self, x: Tensor, w: MoeWeights) -> Tensor:
        gate, up = linear(x, w.shared_w1), linear(x, w.shared_w3)
        hidden = moe.swiglu(gate, up, self._g.swiglu_limit)
        return self._numerics.product(hidden.to(x.dtype), w.shared_w2)

    def _dense(self, x: Tensor, spread: Tensor, w: MoeWeights) -> Tensor:
        wide = x.expand(w.w1.shape[0], -1, -1)
        gate = torch.bmm(wide, w.w1.transpose(1, 2))
        up = torch.bmm(wide, w.w3.transpose(1, 2))
        hidden = moe.swiglu(gate, up, self._g.swiglu_limit) * spread.t()[..., None]
        hidden = self._numerics.activation(hidden.to(x.dtype))
        return torch.bmm(hidden, w.w2.transpose(1, 2)).float().sum(0).to(x.dtype)

    def _lists(self, w: MoeWeights) -> Matrices:
        found = self._matrices.get(id(w))
        if found is None:
            gates = [*w.w1.unbind(0), w.shared_w1]
            ups = [*w.w3.unbind(0), w.shared_w3]
            pairs: list[tuple[Tensor, ...]] = list(zip(gates, ups, strict=True))
            if self._kind == "fused":
                pairs = [(by_column(torch.cat(pair)),) for pair in pairs]
            found = self._matrices[id(w)] = Matrices(pairs, [*w.w2.unbind(0), w.shared_w2])
        return found
