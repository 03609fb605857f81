"""What every layer of one forward shares: positions, rotary tables, masks and the open state."""

from __future__ import annotations

from collections.abc import Sequence
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

    @classmethod
    def joined(cls, parts: Sequence[Rotation]) -> Rotation:
        """The tables of several stretches, one after the other."""
        return cls(torch.cat([p.ahead for p in parts]), torch.cat([p.back for p in parts]))

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


@dataclass(frozen=True, slots=True)
class Joint:
    """Short steps of several sequences as one: their real rows in turn, padded to whole tiles."""

    steps: tuple[Step, ...]
    rows: tuple[slice, ...]  # the real rows of each step among those of all
    padded: tuple[slice, ...]  # the rows of each step, its own padding included, once set apart
    count: int  # real rows
    ids: Tensor  # [tiles * TILE]
    plain: Rotation
    compressed: Rotation
    _places: Tensor  # [sum of the steps' rows], where each of them finds its content

    @classmethod
    def of(cls, steps: Sequence[Step], tables: Tables) -> Joint:
        """Join open short steps."""
        count = sum(step.count for step in steps)
        missing = -count % TILE
        rows, padded, places = [], [], []
        first = first_padded = 0
        for step in steps:
            rows.append(slice(first, first + step.count))
            padded.append(slice(first_padded, first_padded + step.rows))
            places += [first + min(row, step.count - 1) for row in range(step.rows)]
            first, first_padded = rows[-1].stop, padded[-1].stop
        real_ids = [step.ids[: step.count] for step in steps]
        return cls(
            steps=tuple(steps),
            rows=tuple(rows),
            padded=tuple(padded),
            count=count,
            ids=torch.cat([*real_ids, real_ids[0].new_zeros(missing)]),
            plain=_joined([step.plain for step in steps], steps, tables.plain.at(0, missing)),
            compressed=_joined(
                [step.compressed for step in steps], steps, tables.compressed.at(0, missing)
            ),
            _places=torch.tensor(places),
        )

    def apart(self, x: Tensor) -> Tensor:
        """Rows of `x` [tiles * TILE, ...] as each step would hold them alone; see `padded`."""
        return x.index_select(0, self._places)


def _joined(rotations: Sequence[Rotation], steps: Sequence[Step], rest: Rotation) -> Rotation:
    """The real rows of each step's rotation, and the `rest`."""
    real = [r.at(0, step.count) for r, step in zip(rotations, steps, strict=True)]
    return Rotation.joined([*real, rest])


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
