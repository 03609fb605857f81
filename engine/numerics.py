"""The named roundings of the engine: what is rounded where, as one object chosen once.

exact      nothing is rounded; what oracles compare.
cache      key/value rows (E4M3 in groups of 64, all but the rotary tail) and indexer operands
           (Hadamard, then E2M1 in groups of 32) are rounded as stored; activations are not.
reference  cache, and E4M3 in groups of 128 on activations that enter a quantised product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from kernels.oracle.rounding import fp4_round, fp8_round, hadamard

ROW_GROUP = 64
_ACTIVATION_GROUP = 128


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

    def row(self, row: Tensor, rotary_dim: int) -> Tensor:
        """A key/value row [..., d] as it is stored."""
        if not self.rounds_cache:
            return row
        head, tail = row[..., :-rotary_dim], row[..., -rotary_dim:]
        return torch.cat((fp8_round(head, ROW_GROUP), tail), -1)

    def index(self, x: Tensor) -> Tensor:
        """An indexer query or key [..., d]; unrounded, the rotation would change nothing."""
        return fp4_round(hadamard(x)) if self.rounds_cache else x
