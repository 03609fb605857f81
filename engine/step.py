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
    """Unit complex numbers [positions, 1, pairs] of one base, and their inverses."""

    ahead: Tensor
    back: Tensor

    @classmethod
    def build(cls, positions: Tensor, frequencies: Tensor, device: str) -> Rotation:
        """The table of `positions` [t] for the `frequencies` [pairs]."""
        cos, sin = rotary.table(positions, frequencies)
        ahead = torch.complex(cos, sin)[:, None].to(device)
        return cls(ahead, ahead.conj().resolve_conj())

    def at(self, start: int, count: int) -> Rotation:
        """The tables of `count` positions from `start`."""
        return self.of(slice(start, start + count))

    def of(self, positions: slice) -> Rotation:
        """The tables of some positions."""
        return Rotation(self.ahead[positions], self.back[positions])

    def turn_(self, x: Tensor, *, inverse: bool = False) -> Tensor:
        """Rotate `x` [t, h, d], as `rotary.rotate` does, in place where it is float32."""
        turn = self.back if inverse else self.ahead
        tail = x[..., -2 * turn.shape[-1] :]
        if x.dtype == torch.float32:
            torch.view_as_complex(tail.unflatten(-1, (-1, 2))).mul_(turn)
        else:
            wide = torch.view_as_complex(tail.float().unflatten(-1, (-1, 2))) * turn
            tail.copy_(torch.view_as_real(wide).flatten(-2))
        return x


@dataclass(frozen=True, slots=True)
class Tables:
    """What depends on positions alone: two rotations and what each position sees of its window.

    `plain` serves window-only layers and draft blocks, `compressed` the layers that compress.
    """

    plain: Rotation
    compressed: Rotation
    window: Tensor  # [2 ring + TILE, 1, ring], added to scores; see `_window_table`

    @classmethod
    def build(cls, geometry: Geometry, context: int, device: str) -> Tables:
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

        return cls(
            plain=Rotation.build(positions, plain, device),
            compressed=Rotation.build(positions, stretched, device),
            window=_window_table(g.sliding_window).to(device),
        )

    def visible(self, start: int, count: int) -> Tensor:
        """Rows of `window` for a short step."""
        ring = self.window.shape[-1]
        first = start if start < ring else ring + start % ring
        return self.window[first : first + count]


def _window_table(window: int) -> Tensor:
    """0 where the query at position p sees a slot of the ring, else -inf, for p in [0, 2 ring).

    Slot s holds the newest position that is s modulo the ring and at most p, or one of a later row
    of the same step: that one seems older than the window, for the ring has TILE rows to spare.
    Past the first ring's length the pattern repeats.
    """
    ring = window + TILE
    positions = torch.arange(2 * ring + TILE)[:, None]
    age = (positions - torch.arange(ring)) % ring
    return bias((age < window) & (age <= positions))[:, None]


def bias(visible: Tensor) -> Tensor:
    """Float32 to add to scores: 0 where `visible`, else -inf."""
    return torch.where(visible, _SEEN, _HIDDEN)


_SEEN, _HIDDEN = torch.tensor(0.0), torch.tensor(-torch.inf)


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
    window_bias: Tensor  # [rows, 1, keys], see `bias`

    @property
    def short(self) -> bool:
        """Whether this is a decode or verify step, which can be taken back."""
        return self.rows <= TILE

    def windows(self, ratio: int) -> Tensor:
        """Complete compression windows that each row sees [rows, 1]."""
        return ((self.positions + 1) // ratio)[:, None]

    @property
    def last(self) -> int:
        """Position of the last real row."""
        return self.start + self.count - 1

    @classmethod
    def open(
        cls,
        geometry: Geometry,
        tables: Tables,
        state: State,
        ids: Tensor,
        *,
        row_tile: int,
    ) -> Step:
        """Begin a step on `state` for the token `ids` [t], a few of them padded to `row_tile`."""
        count = ids.numel()
        start = state.length
        rows = padded(count, row_tile) if count <= TILE else count
        state.begin(count)
        positions = torch.arange(start, start + rows, device=ids.device)
        if rows > count:
            ids = torch.cat((ids, ids.new_zeros(rows - count)))
        return cls(
            state=state,
            start=start,
            count=count,
            rows=rows,
            positions=positions,
            ids=ids,
            plain=tables.plain.at(start, rows),
            compressed=tables.compressed.at(start, rows),
            all_compressed=tables.compressed,
            window_bias=(
                tables.visible(start, rows)
                if rows <= TILE
                else _long_bias(positions, geometry.sliding_window)
            ),
        )


def padded(count: int, row_tile: int) -> int:
    """Rows of a step of `count` real ones: at least `row_tile`, and an even number.

    Vectorised functions end in a scalar remainder, whose bits may differ; pairs of rows fill it.
    """
    rows = max(count, row_tile)
    return rows + rows % 2


def _long_bias(positions: Tensor, window: int) -> Tensor:
    """What the queries of a long step see of the past window and the step's own rows."""
    keys = torch.arange(1 - window, positions.numel(), device=positions.device) + positions[0]
    age = positions[:, None] - keys
    return bias((age >= 0) & (age < window) & (keys >= 0))[:, None]
