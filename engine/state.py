"""All that one sequence remembers, as one object with `snapshot`, `commit(n)` and `rollback`.

A step writes its rows in place, at slots that depend on the position alone, after saving what it
overwrites; `commit(n)` puts back what the rejected rows replaced. So after any partial accept
every byte is what it would be had the rejected tokens never been drafted.

The ring of the window holds `window + TILE` rows: the last row of a step still overwrites nothing
that its first row can see.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.errors import EngineError
from engine.geometry import Geometry
from engine.ring import read_ring, write_ring
from engine.rows import RowFormat

TILE = 8  # rows that one step may write and still take back
# Numbers that a vectorised loop takes at once; what is left over runs in scalar code, whose bits
# may differ, so whatever must not depend on its place is padded to a multiple.
VECTOR = 16
INDEXED_BUCKET = 512  # compressed rows are read in whole buckets, so that sums keep their order
PLAIN_BUCKET = 64


@dataclass(slots=True)
class Pool:
    """Compressed rows of the layers that share a ratio, with the raw inputs not yet pooled.

    `inputs` [layers, ring, 2 width], values and gates side by side, is a ring by position; `rows`
    [layers, capacity, ...] are addressed by window. `overlapping` windows also pool half of their
    predecessor.
    """

    ratio: int
    overlapping: bool
    layers: tuple[int, ...]
    inputs: Tensor
    rows: Tensor
    bucket: int

    @property
    def ring(self) -> int:
        return self.inputs.shape[1]

    @property
    def kept(self) -> dict[str, Tensor]:
        """What prompts with one beginning may share."""
        return {"rows": self.rows}

    def tensors(self) -> dict[str, Tensor]:
        return {"inputs": self.inputs, **self.kept}

    def bucketed(self, position: int) -> int:
        """Rows to read for a query at `position`: the visible ones, rounded up to whole buckets."""
        visible = (position + 1) // self.ratio
        return min(self.rows.shape[1], (visible // self.bucket + 1) * self.bucket)


@dataclass(frozen=True, slots=True)
class _Undo:
    start: int
    count: int
    saved: tuple[tuple[Tensor, int, Tensor, int], ...]  # (buffer, first, old content, stride)


class State:
    """Window, compressor inputs, compressed rows, indexer keys and draft rows of a sequence."""

    def __init__(self, geometry: Geometry, config: EngineConfig, *, device: str = "cpu") -> None:
        g = geometry
        self.context = config.context
        self.length = 0  # committed tokens
        self.row_format = RowFormat(config.cache_format, g.head_dim, g.qk_rope_head_dim)
        self._window = g.sliding_window
        self.window_ring = g.sliding_window + TILE
        layers = g.num_hidden_layers
        self.window = self._rows(layers, self.window_ring, device)
        self.draft = self._rows(g.draft_stages, g.sliding_window, device)
        self.draft_length = 0
        self.pools: dict[str, Pool] = {}
        for ratio in sorted({r for r in g.layer_ratios if r}):
            owners = tuple(i for i, r in enumerate(g.layer_ratios) if r == ratio)
            self.pools[f"rows.{ratio}"] = self._pool(ratio, owners, g.head_dim, device, packed=True)
            if ratio == 4:
                self.pools["keys.4"] = self._pool(
                    ratio, owners, g.index_head_dim, device, packed=False
                )
        self._undo: _Undo | None = None

    def _rows(self, layers: int, count: int, device: str) -> Tensor:
        shape = (layers, count, self.row_format.width)
        return torch.zeros(shape, dtype=self.row_format.dtype, device=device)

    def _pool(
        self, ratio: int, layers: tuple[int, ...], dim: int, device: str, *, packed: bool
    ) -> Pool:
        overlapping = ratio == 4
        width = dim * (2 if overlapping else 1)
        ring = ratio * (2 if overlapping else 1) + TILE
        bucket = INDEXED_BUCKET if overlapping else PLAIN_BUCKET
        capacity = max(1, -(-(self.context // ratio) // bucket)) * bucket
        rows = (
            self._rows(len(layers), capacity, device)
            if packed
            else torch.zeros(len(layers), capacity, dim, device=device)
        )
        return Pool(
            ratio=ratio,
            overlapping=overlapping,
            layers=layers,
            inputs=torch.zeros(len(layers), ring, 2 * width, device=device),
            rows=rows,
            bucket=bucket,
        )

    def span(self) -> int:
        """Rows after the committed ones that read equally many compressed rows as the next.

        Rows of one step must, or their sums would depend on what shares the step.
        """
        edges = [
            pool.bucketed(self.length) * pool.ratio - 1
            if pool.bucketed(self.length) < pool.rows.shape[1]
            else self.context + TILE
            for pool in self.pools.values()
        ]
        return min([edge - self.length for edge in edges], default=TILE)

    # ---------------------------------------------------------------- steps and their undoing

    def begin(self, count: int) -> None:
        """Announce a step of `count` rows after the committed ones, saving what it will overwrite.

        More than TILE rows cannot be taken back; they must be committed whole.
        """
        if self._undo is not None:
            raise EngineError("A step is already open; commit or roll it back first.")
        saved = tuple(self._overwritten(count)) if count <= TILE else ()
        self._undo = _Undo(self.length, count, saved)

    def commit(self, count: int) -> None:
        """Keep the first `count` rows of the open step and restore what the others overwrote."""
        undo = self._undo
        if undo is None:
            raise EngineError("No step is open.")
        if not 0 <= count <= undo.count or (undo.count > TILE and count != undo.count):
            raise EngineError(f"A step of {undo.count} rows cannot commit {count}.")
        for buffer, first, content, stride in undo.saved if count < undo.count else ():
            kept = (undo.start + count) // stride - undo.start // stride
            if kept < content.shape[1]:
                write_ring(buffer, first + kept, content[:, kept:], axis=1)
        self.length = undo.start + count
        self._undo = None

    def rollback(self) -> None:
        """Forget the open step."""
        self.commit(0)

    def _overwritten(self, count: int) -> Iterator[tuple[Tensor, int, Tensor, int]]:
        start, stop = self.length, self.length + count
        yield self.window, start, read_ring(self.window, start, stop, axis=1), 1
        for pool in self.pools.values():
            yield pool.inputs, start, read_ring(pool.inputs, start, stop, axis=1), 1
            first, last = start // pool.ratio, stop // pool.ratio
            if last > first:
                yield pool.rows, first, pool.rows[:, first:last].clone(), pool.ratio

    # ---------------------------------------------------------------- copies and comparison

    def tensors(self) -> dict[str, Tensor]:
        """Every buffer by name."""
        named = {"window": self.window, "draft": self.draft}
        for name, pool in self.pools.items():
            named |= {f"{name}.{part}": tensor for part, tensor in pool.tensors().items()}
        return named

    def snapshot(self) -> State:
        """An independent copy; the open step, if any, must be closed first."""
        if self._undo is not None:
            raise EngineError("A snapshot needs the open step to be committed or rolled back.")
        return copy.deepcopy(self)

    def restore(self, snapshot: State) -> None:
        """Become `snapshot` again, in place."""
        for mine, theirs in zip(self.tensors().values(), snapshot.tensors().values(), strict=True):
            mine.copy_(theirs)
        self.length, self.draft_length = snapshot.length, snapshot.draft_length
        self._undo = None

    def equals(self, other: State) -> str | None:
        """Name of the first part that differs in any bit, or None."""
        if (self.length, self.draft_length) != (other.length, other.draft_length):
            return "length"
        theirs = other.tensors()
        for name, tensor in self.tensors().items():
            if not torch.equal(tensor.view(torch.uint8), theirs[name].view(torch.uint8)):
                return name
        return None

    def size_bytes(self) -> int:
        """Memory held by all buffers."""
        return sum(t.numel() * t.element_size() for t in self.tensors().values())
