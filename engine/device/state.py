"""What one sequence remembers, as views of one arena of bytes on the device.

The device alone counts positions; the host keeps a copy of the number for its own decisions. Every
buffer lies in the arena, so copies, comparisons and the undoing of a step are operations on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.geometry import Geometry
from engine.state import TILE
from kernels.packed import CACHE_GROUP, INDEX_GROUP, Packed, Rows
from kernels.rings import WORD, Rings

_ALIGNMENT = 256  # bytes, of every buffer in the arena
_ROWS = 64  # compressed rows are made room for in such blocks


@dataclass(frozen=True, slots=True)
class Buffer:
    """Shape and type of one buffer, and the positions that share a slot of its second axis."""

    shape: tuple[int, int, int]  # [layers, slots, channels]
    dtype: torch.dtype
    ratio: int = 1

    @property
    def nbytes(self) -> int:
        layers, slots, channels = self.shape
        return layers * slots * channels * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Pool:
    """Compressed rows of the layers that share a ratio, and their inputs not yet pooled."""

    ratio: int
    layers: tuple[int, ...]
    inputs: Tensor  # float32 [layers, ring, 2 width]
    kept: dict[str, Tensor]  # `rows`, or the parts of packed ones: [layers, capacity, ...]

    @property
    def row_bytes(self) -> int:
        """Of one row."""
        return sum(part[0, 0].nbytes for part in self.kept.values())

    def rows(self, layer: int) -> Rows:
        """Those of one of the model's layers, which must be of this ratio."""
        slot = self.layers.index(layer)
        mine = {name: part[slot] for name, part in self.kept.items()}
        return mine["rows"] if "rows" in mine else Packed(**mine)


class Store:
    """The buffers of one sequence, by name, and its position: memory that sequences use in turn."""

    def __init__(
        self,
        geometry: Geometry,
        context: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        packed: bool = False,
    ) -> None:
        self.shapes = buffers(geometry, context, dtype, packed=packed)
        count = size_bytes(geometry, context, dtype, packed=packed)
        self.arena = torch.zeros(count, dtype=torch.uint8, device=device)
        self.named = _views(self.arena, self.shapes)
        self.pools = {
            name: Pool(
                ratio=_ratio(name),
                layers=_owners(geometry, _ratio(name)),
                inputs=self.named[f"{name}.inputs"],
                kept={part: self.named[f"{name}.{part}"] for part in _parts(name, packed=packed)},
            )
            for name in _pool_names(geometry)
        }
        self.rings = Rings.of(self.arena, list(self._undoable()))
        self.position = torch.zeros(1, dtype=torch.int64, device=device)

    def _undoable(self) -> Iterator[tuple[Tensor, int]]:
        """Every ring that a step writes before it is known which rows stay, with its ratio."""
        for name, buffer in self.named.items():
            if name != "draft":
                for layer in buffer:
                    yield layer, self.shapes[name].ratio


class State:
    """Window, compressor inputs, compressed rows, indexer keys and draft rows of a sequence."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._length = 0
        self.draft_length = 0
        self.clear()

    @property
    def pools(self) -> dict[str, Pool]:
        """Compressed rows by name."""
        return self.store.pools

    # ---------------------------------------------------------------- positions

    @property
    def length(self) -> int:
        """Committed tokens."""
        return self._length

    @length.setter
    def length(self, count: int) -> None:
        self._length = count
        self.store.position.fill_(count)

    def advance(self, count: int, *, drafting: bool) -> None:
        """Move the device's position by `count` committed rows, and the host's copy with it."""
        self.store.position += count
        self.follow(self._length + count, drafting=drafting)

    def follow(self, length: int, *, drafting: bool) -> None:
        """Take over the number that the device has already counted to."""
        self._length = length
        if drafting:
            self.draft_length = length

    def span(self) -> int:
        """Rows that one step may have; sums do not depend on how many compressed rows there are."""
        return TILE

    # ---------------------------------------------------------------- copies and comparison

    def tensors(self) -> dict[str, Tensor]:
        """Every buffer by name."""
        return dict(self.store.named)

    def clear(self) -> None:
        """Forget everything."""
        self.store.arena.zero_()
        self.length = self.draft_length = 0

    def snapshot(self) -> Snapshot:
        """An independent copy."""
        return Snapshot(self.store.arena.clone(), self.length, self.draft_length)

    def restore(self, snapshot: Snapshot) -> None:
        """Become `snapshot` again, in place."""
        self.store.arena.copy_(snapshot.arena)
        self.length, self.draft_length = snapshot.length, snapshot.draft_length

    def equals(self, other: State | Snapshot) -> str | None:
        """Name of the first part that differs in any bit, or None."""
        if (self.length, self.draft_length) != (other.length, other.draft_length):
            return "length"
        arena = other.store.arena if isinstance(other, State) else other.arena
        if torch.equal(self.store.arena, arena):
            return None
        theirs = _views(arena, self.store.shapes)
        for name, mine in self.store.named.items():
            if not torch.equal(mine.view(torch.uint8), theirs[name].view(torch.uint8)):
                return name
        return "padding"

    def size_bytes(self) -> int:
        """Memory held by all buffers."""
        return self.store.arena.nbytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of all that a state held."""

    arena: Tensor
    length: int
    draft_length: int


def buffers(
    geometry: Geometry, context: int, dtype: torch.dtype, *, packed: bool = False
) -> dict[str, Buffer]:
    """Every buffer of a sequence by name; rows are of `dtype`, inputs of the pools float32.

    Compressed rows and index keys may be `packed`: codes and scales are bytes, tails of `dtype`.
    """
    g = geometry
    named = {
        "window": Buffer((g.num_hidden_layers, g.sliding_window + TILE, g.head_dim), dtype),
        "draft": Buffer((g.draft_stages, g.sliding_window, g.head_dim), dtype),
    }
    for name in _pool_names(geometry):
        ratio = _ratio(name)
        layers = len(_owners(g, ratio))
        overlap = 2 if ratio == 4 else 1
        dim = g.index_head_dim if _is_keys(name) else g.head_dim
        named[f"{name}.inputs"] = Buffer(
            (layers, ratio * overlap + TILE, 2 * overlap * dim), torch.float32
        )
        # A last step may end in windows past the context.
        capacity = -(-((context + TILE) // ratio + 1) // _ROWS) * _ROWS
        widths = _widths(geometry, name) if packed else {"rows": dim}
        for part in _parts(name, packed=packed):
            kind = torch.uint8 if part in ("codes", "scales") else dtype
            named[f"{name}.{part}"] = Buffer((layers, capacity, widths[part]), kind, ratio)
    return named


def size_bytes(
    geometry: Geometry, context: int, dtype: torch.dtype, *, packed: bool = False
) -> int:
    """Bytes of the arena of one sequence."""
    named = buffers(geometry, context, dtype, packed=packed)
    return sum(_aligned(buffer.nbytes) for buffer in named.values())


def _pool_names(geometry: Geometry) -> list[str]:
    ratios = sorted({r for r in geometry.layer_ratios if r})
    return [f"rows.{r}" for r in ratios] + ["keys.4" for r in ratios if r == 4]


def _ratio(name: str) -> int:
    return int(name.partition(".")[2])


def _is_keys(name: str) -> bool:
    return name.startswith("keys")


def _parts(name: str, *, packed: bool) -> tuple[str, ...]:
    """Tensors of the compressed rows of the pool `name`."""
    if not packed:
        return ("rows",)
    return ("codes", "scales") if _is_keys(name) else ("codes", "scales", "tail")


def _widths(geometry: Geometry, name: str) -> dict[str, int]:
    """Of the parts of packed rows; a line of scales is made of whole words, as every ring is."""
    g = geometry
    if _is_keys(name):
        codes, groups = g.index_head_dim // 2, g.index_head_dim // INDEX_GROUP
    else:
        codes = g.head_dim - g.qk_rope_head_dim
        groups = codes // CACHE_GROUP
    return {"codes": codes, "scales": -(-groups // WORD) * WORD, "tail": g.qk_rope_head_dim}


def _owners(geometry: Geometry, ratio: int) -> tuple[int, ...]:
    return tuple(i for i, r in enumerate(geometry.layer_ratios) if r == ratio)


def _aligned(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT


def _views(arena: Tensor, named: dict[str, Buffer]) -> dict[str, Tensor]:
    views, first = {}, 0
    for name, buffer in named.items():
        part = arena.narrow(0, first, buffer.nbytes)
        views[name] = part.view(buffer.dtype).view(buffer.shape)
        first += _aligned(buffer.nbytes)
    return views
