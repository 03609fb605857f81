"""Updates of the flat master: orthogonalised momentum for hidden matrices, AdamW for the rest.

The matrix rule is Muon (Jordan et al. 2024): Nesterov momentum, pushed toward the nearest
orthogonal matrix by a Newton-Schulz iteration, here on all same-shaped matrices at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.train.parameters import Parameters

# Quintic iteration that drives all singular values toward 1 (coefficients of Jordan et al.).
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_STEPS = 5


@dataclass(frozen=True, slots=True)
class Rates:
    """Learning rates at full schedule, and the other constants of both rules."""

    matrix: float = 0.02
    adam: float = 3e-3
    momentum: float = 0.95
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    decay: float = 0.05
    clip: float = 1.0


class Optimiser:
    """Owns the moments of one parameter group."""

    def __init__(self, parameters: Parameters, rates: Rates, *, muon: bool) -> None:
        self._p, self.rates = parameters, rates
        device = parameters.master.device
        self._split = parameters.section("fp4", "fp8").stop if muon else 0
        self._batches = parameters.alike("fp4", "fp8") if muon else []
        self.momentum = torch.zeros(self._split, device=device)
        size = parameters.size - self._split
        self.first, self.second = torch.zeros(size, device=device), torch.zeros(size, device=device)
        self._scale, self._decay = self._multipliers()
        self.steps = 0
        # Of the coming step, on the device: share of the rates, bias corrections of both moments.
        self.control = torch.ones(3, device=device)

    def prepare(self, factor: float) -> None:
        """Count one step, at `factor` times the full rates; `update` does it."""
        self.steps += 1
        first, second = (1 - beta**self.steps for beta in self.rates.betas)
        self.control.copy_(torch.tensor([factor, first, second]))

    @torch.no_grad()
    def update(self) -> Tensor:
        """The prepared update; returns the gradient norm (a device scalar). Never waits."""
        r, split = self.rates, self._split
        factor, first_share, second_share = self.control.unbind()
        gradient = self._p.gradient()
        norm = gradient.norm()
        gradient *= (r.clip / (norm + 1e-6)).clamp(max=1.0)
        if split:
            self._matrices(gradient[:split], factor)
        master, grad = self._p.master[split:], gradient[split:]
        self.first.lerp_(grad, 1 - r.betas[0])
        self.second.mul_(r.betas[1]).addcmul_(grad, grad, value=1 - r.betas[1])
        first = self.first / first_share
        second = (self.second / second_share).sqrt_().add_(r.eps)
        rate = r.adam * factor
        master.mul_(1 - rate * self._decay).sub_(first / second * self._scale * rate)
        return norm

    def state(self) -> dict[str, Any]:
        """Everything a resumed run needs."""
        return {
            "steps": self.steps, "momentum": self.momentum,
            "first": self.first, "second": self.second,
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self.steps = int(state["steps"])
        for name in ("momentum", "first", "second"):
            getattr(self, name).copy_(state[name])

    def _matrices(self, gradient: Tensor, factor: Tensor) -> None:
        r = self.rates
        self.momentum.lerp_(gradient, 1 - r.momentum)
        ahead = gradient.lerp(self.momentum, r.momentum)
        master = self._p.master
        for place, shape in self._batches:
            update = orthogonalised(ahead[place].view(shape))
            rows, columns = shape[1:]
            rate = r.matrix * factor
            part = master[place]
            part.mul_(1 - rate * r.decay)
            step = update.flatten().to(part.dtype)
            part.sub_(step * (rate * max(1.0, rows / columns) ** 0.5))

    def _multipliers(self) -> tuple[Tensor, Tensor]:
        """Per element: its share of the rate, and its weight decay."""
        scale = torch.ones(self._p.size - self._split, device=self._p.master.device)
        decay = torch.zeros_like(scale)
        for place in self._p.places:
            if place.start < self._split:
                continue
            part = slice(place.start - self._split, place.stop - self._split)
            name = place.entry.name
            if name.endswith("gate.bias"):
                scale[part] = 0.0  # moved by the balancing rule, not by gradients
            elif place.entry.format == "f32":
                scale[part] = 0.3
            elif len(place.entry.shape) > 1:
                decay[part] = self.rates.decay
                if "embed" not in name and "head.weight" not in name and "markov" not in name:
                    scale[part] = 0.5
        return scale, decay


def orthogonalised(matrices: Tensor) -> Tensor:
    """Roughly orthogonal [n, r, c]: singular values of each matrix moved close to 1."""
    a, b, c = _NEWTON_SCHULZ
    wide = matrices.shape[1] <= matrices.shape[2]
    x = matrices if wide else matrices.transpose(1, 2)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    x = x.bfloat16() if x.is_cuda else x
    for _ in range(_STEPS):
        square = x @ x.transpose(1, 2)
        x = a * x + (b * square + c * square @ square) @ x
    return x if wide else x.transpose(1, 2)
