"""Cosines and sines of every position, on the device."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engine.geometry import Geometry
from engine.state import TILE
from kernels.oracle import rotary


class Turn(NamedTuple):
    """Float32 [positions, pairs]."""

    cos: Tensor
    sin: Tensor


class Tables(NamedTuple):
    """`plain` serves window-only layers and draft blocks, `compressed` layers that compress."""

    plain: Turn
    compressed: Turn

    @classmethod
    def build(cls, geometry: Geometry, context: int, device: torch.device) -> Tables:
        """Tables for `context` tokens and one step past them, computed as the torch backend does.

        They are made on the host: a device's cosines differ in the last bit.
        """
        g = geometry
        positions = torch.arange(context + 2 * TILE)
        plain = rotary.frequencies(g.qk_rope_head_dim, g.rope_theta)
        stretched = rotary.yarn_frequencies(
            g.qk_rope_head_dim,
            g.compress_rope_theta,
            factor=g.yarn.factor,
            original_positions=g.yarn.original_max_position_embeddings,
            beta_fast=g.yarn.beta_fast,
            beta_slow=g.yarn.beta_slow,
        )
        return cls(*(_turn(positions, f, device) for f in (plain, stretched)))


def _turn(positions: Tensor, frequencies: Tensor, device: torch.device) -> Turn:
    cos, sin = rotary.table(positions, frequencies)
    return Turn(cos.to(device), sin.to(device))
