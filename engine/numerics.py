"""The named roundings of the engine: what is rounded where, as one object chosen once.

exact      nothing is rounded; what oracles compare.
cache      key/value rows (E4M3 in groups of 64, all but the rotary tail) and indexer operands
           (Hadamard, then E2M1 in groups of 32) are rounded as stored; activations are not.
reference  cache, and E4M3 in groups of 128 on activations that enter a quantised product.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from kernels.oracle.rounding import E4M3_MAX, fp4_round, fp8_round, hadamard

ROW_GROUP = 64
_ACTIVATION_GROUP = 128
_FLOOR = 1e-4  # of a group's largest magnitude


@dataclass(frozen=True, slots=True)
class Numerics:
    """`rounds_cache` and `rounds_activations` say which of the three choices this is."""

    rounds_cache: bool
    rounds_activations: bool

    @classmethod
    def named(cls, name: str) -> Numerics:
        """The choice called `exact`, `cache` or `reference`."""
        return cls(rounds_cache=name != "exact", rounds_activations=name == "reference")

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """`x` [..., k] times a quantised `weight` [n, k], transposed."""
        return linear(self.activation(x), weight)

    def activation(self, x: Tensor) -> Tensor:
        """`x` as it enters a quantised product."""
        return fp8_round(x, _ACTIVATION_GROUP) if self.rounds_activations else x

    def row_(self, row: Tensor, rotary_dim: int) -> Tensor:
        """Turn key/value rows [..., d] in place into what is stored: `rounding.cache_round`."""
        if self.rounds_cache:
            head = row[..., :-rotary_dim].unflatten(-1, (-1, ROW_GROUP))
            floor, limit = _bounds()
            largest = torch.linalg.vector_norm(head, torch.inf, -1, keepdim=True)
            scale = largest.float().clamp_min_(floor).div_(limit).log2_().ceil_().exp2_()
            head.copy_((head / scale).to(torch.float8_e4m3fn))
            head.mul_(scale)
        return row

    def index(self, x: Tensor) -> Tensor:
        """An indexer query or key [..., d]; unrounded, the rotation would change nothing."""
        return fp4_round(hadamard(x)) if self.rounds_cache else x


@functools.cache
def _bounds() -> tuple[Tensor, Tensor]:
    """Tensors, since a Python number would be converted at every use."""
    return torch.tensor(_FLOOR), torch.tensor(E4M3_MAX)
