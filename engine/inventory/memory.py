"""What a sequence holds beside the weights, and what a token reads of it, by context."""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import EngineConfig
from engine.geometry import Geometry
from engine.numerics import ROW_GROUP
from engine.state import State

CONTEXTS = (1024, 4096, 8192, 32768, 131072)
INDEXED_RATIO = 4  # layers of this ratio overlap their windows and choose rows by an indexer
FORMATS = ("packed", "bf16", "mixed")


@dataclass(frozen=True, slots=True)
class Form:
    """How a sequence's rows are kept."""

    element_bytes: int  # of a number that is not packed
    windows_packed: bool
    rows_packed: bool  # compressed rows, and the keys of indexers


# Mixed is what the triton backend keeps under key_format 'packed'.
FORMS = {
    "packed": Form(2, windows_packed=True, rows_packed=True),
    "bf16": Form(2, windows_packed=False, rows_packed=False),
    "float32": Form(4, windows_packed=False, rows_packed=False),
    "mixed": Form(2, windows_packed=False, rows_packed=True),
    "mixed float32": Form(4, windows_packed=False, rows_packed=True),
}


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one sequence of `context` tokens, in one format of cache rows."""

    context: int
    format: str
    window: int  # of the backbone's layers
    draft: int  # windows of the draft's stages
    partial: int  # inputs of windows not yet pooled, F32
    compressed: int
    keys: int  # of the indexers
    read: int  # by the token at the end of the context: rows that it attends to and all keys

    @property
    def held(self) -> int:
        """Everything that must be in memory."""
        return self.window + self.draft + self.partial + self.compressed + self.keys


def row_bytes(geometry: Geometry, form: str) -> tuple[int, int]:
    """A compressed key/value row and an indexer key.

    Packed: E4M3 with an exponent per 64 channels, a rotary tail that is not and one byte of padding
    to an even length; keys are E2M1 with an exponent per 32 channels.
    """
    index, size = geometry.index_head_dim, FORMS[form].element_bytes
    packed = FORMS[form].rows_packed
    key = index // 2 + index // 32 if packed else size * index
    return _row_bytes(geometry, size, packed=packed), key


def window_row_bytes(geometry: Geometry, form: str) -> int:
    """A key/value row of a window."""
    return _row_bytes(geometry, FORMS[form].element_bytes, packed=FORMS[form].windows_packed)


def _row_bytes(geometry: Geometry, size: int, *, packed: bool) -> int:
    dim, tail = geometry.head_dim, geometry.qk_rope_head_dim
    if not packed:
        return size * dim
    exponents = (dim - tail) // ROW_GROUP
    return dim - tail + size * tail + exponents + exponents % 2


def memory(geometry: Geometry, context: int, form: str) -> Memory:
    """What the model's own state takes, without the slack that an implementation adds."""
    g = geometry
    row, key = row_bytes(g, form)
    near = window_row_bytes(g, form)
    visible = min(context, g.sliding_window)
    compressed = keys = read_rows = partial = 0
    for ratio in (r for r in g.layer_ratios if r):
        rows, indexed = context // ratio, ratio == INDEXED_RATIO
        compressed += rows * row
        read_rows += min(rows, g.index_topk) if indexed else rows
        partial += _partial(ratio, g.head_dim)
        if indexed:
            keys += rows * key
            partial += _partial(ratio, g.index_head_dim)
    layers = g.num_hidden_layers
    return Memory(
        context=context,
        format=form,
        window=layers * g.sliding_window * near,
        draft=g.draft_stages * g.sliding_window * near,
        partial=partial,
        compressed=compressed,
        keys=keys,
        read=layers * visible * near + read_rows * row + keys,
    )


def growth(geometry: Geometry, form: str) -> float:
    """Bytes that one more token adds, on average over the windows."""
    row, key = row_bytes(geometry, form)
    each = [(row + key * (r == INDEXED_RATIO)) / r for r in geometry.layer_ratios if r]
    return sum(each)


def held_by_torch(geometry: Geometry, context: int) -> int:
    """Bytes of the torch backend's state, which keeps rows in float32 and whole buckets."""
    return State(geometry, EngineConfig(context=context), device="meta").size_bytes()


def _partial(ratio: int, dim: int) -> int:
    """Values and gates in float32 of one window, of two whose halves overlap at ratio 4."""
    overlap = 2 if ratio == INDEXED_RATIO else 1
    return overlap * ratio * overlap * dim * 2 * 4
