"""What every layer of one forward shares: positions, rotary tables, masks and the open state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from engine.geometry import Geometry
from engine.state import TILE, State
from kernels.oracle import rotary


class Rotation(NamedTuple):
    """Cosine and sine tables [positions, pairs] of one base."""

    cos: Tensor
    sin: Tensor

    def at(self, start: int, count: int) -> Rotation:
        """The tables of `count` positions from `start`."""
        return Rotation(self.cos[start : start + count], self.sin[start : start + count])

    def strided(self, start: int, stop: int, stride: int) -> Rotation:
        """The tables of every `stride`-th position."""
        return Rotation(self.cos[start:stop:stride], self.sin[start:stop:stride])

    def turn(self, x: Tensor, *, inverse: bool = False) -> Tensor:
        """Rotate `x` [t, d] or [t, h, d]."""
        cos, sin = (self.cos, self.sin) if x.dim() == 2 else (self.cos[:, None], self.sin[:, None])
        return rotary.rotate(x, cos, sin, inverse=inverse)


@dataclass(frozen=True, slots=True)
class Rotations:
    """The two tables of a model: window-only layers and draft blocks, and compressed layers."""

    plain: Rotation
    compressed: Rotation

    @classmethod
    def build(cls, geometry: Geometry, context: int, device: str) -> Rotations:
        """Tables long enough for `context` tokens and one padded step past them."""
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

        def table(frequencies: Tensor) -> Rotation:
            cos, sin = rotary.table(positions, frequencies)
            return Rotation(cos.to(device), sin.to(device))

        return cls(plain=table(plain), compressed=table(stretched))


@dataclass(frozen=True, slots=True)
class Step:
    """One forward of `count` real rows from position `start`, padded to `rows`.

    A short step (`rows` <= TILE) reads the window ring as it lies, so a row's sums run in the same
    order whatever shares the step. A long one (prefill) reads the past and its own rows in order.
    """

    state: State
    start: int
    count: int
    rows: int
    positions: Tensor  # [rows]
    ids: Tensor  # [rows]
    plain: Rotation
    compressed: Rotation
    all_compressed: Rotation
    window_slots: Tensor  # [count], ring slots of the real rows
    window_mask: Tensor  # [rows, 1, keys]

    @property
    def short(self) -> bool:
        """Whether this is a decode or verify step, which can be taken back."""
        return self.rows <= TILE

    @property
    def last(self) -> int:
        """Position of the last real row."""
        return self.start + self.count - 1

    @classmethod
    def open(
        cls,
        geometry: Geometry,
        rotations: Rotations,
        state: State,
        ids: Tensor,
        *,
        row_tile: int,
    ) -> Step:
        """Begin a step on `state` for the token `ids` [t]; short steps are padded to a tile."""
        count = ids.numel()
        start = state.length
        rows = -(-count // row_tile) * row_tile if count <= TILE else count
        state.begin(count)
        positions = torch.arange(start, start + rows, device=ids.device)
        if rows > count:
            ids = torch.cat((ids, ids.new_zeros(rows - count)))
        if rows <= TILE:
            ring = state.window_ring
            last = start + count - 1
            slots = torch.arange(ring, device=ids.device)
            keys = last - (last - slots) % ring
        else:
            keys = torch.arange(
                start - geometry.sliding_window + 1, start + count, device=ids.device
            )
        age = positions[:, None] - keys
        mask = (age >= 0) & (age < geometry.sliding_window) & (keys >= 0)
        return cls(
            state=state,
            start=start,
            count=count,
            rows=rows,
            positions=positions,
            ids=ids,
            plain=rotations.plain.at(start, rows),
            compressed=rotations.compressed.at(start, rows),
            all_compressed=rotations.compressed,
            window_slots=positions[:count] % state.window_ring,
            window_mask=mask[:, None, :],
        )
