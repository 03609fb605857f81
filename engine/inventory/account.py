"""One model's inventory as data: what the command prints, and its JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.errors import ConfigError
from engine.geometry import Geometry
from engine.inventory import header
from engine.inventory.floor import Bandwidth
from engine.inventory.memory import CONTEXTS, FORMATS, Memory, growth, held_by_torch, memory
from engine.inventory.part import (
    Part,
    draft_bytes,
    expected_experts,
    expert_bytes,
    parts,
    read_bytes,
)
from engine.state import TILE


@dataclass(frozen=True, slots=True)
class Width:
    """A verify step of `rows` tokens: experts of a layer that it visits, and bytes."""

    rows: int
    experts: float
    read_bytes: float
    of_plain: float  # bytes over those of a plain step


@dataclass(frozen=True, slots=True)
class Account:
    """Everything about one model.

    `tensors_from` is `config` where only config.json speaks, `config = headers` where the headers
    of the checkpoint's shards were found to say the same.
    """

    model: str
    tensors_from: str
    parts: tuple[Part, ...]
    expert_bytes: int
    widths: tuple[Width, ...]
    draft: dict[str, float]
    memory: tuple[Memory, ...]
    torch_state: dict[int, int]  # bytes of the torch backend's float32 state by context
    growth: dict[str, float]
    bandwidth: Bandwidth

    @property
    def tensors(self) -> int:
        """Tensors on disk, scales among them."""
        return sum(part.tensors for part in self.parts)

    @property
    def stored_bytes(self) -> int:
        """All of them."""
        return sum(part.stored_bytes for part in self.parts)

    @property
    def read_bytes(self) -> int:
        """Weights that one plainly decoded token reads."""
        return sum(part.read_bytes for part in self.parts)

    def groups(self) -> dict[str, int]:
        """Stored bytes by coarse part, largest first."""
        sums: dict[str, int] = {}
        for part in self.parts:
            sums[part.kind.group] = sums.get(part.kind.group, 0) + part.stored_bytes
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def json(self) -> dict[str, Any]:
        """Plain values; bytes unless a name says otherwise."""
        return {
            **asdict(self),
            "memory": [{**asdict(m), "held": m.held} for m in self.memory],
            "groups": self.groups(),
            "totals": {
                "tensors": self.tensors,
                "stored_bytes": self.stored_bytes,
                "read_bytes": self.read_bytes,
                "floor_ms": self.bandwidth.floor_ms(self.read_bytes),
            },
        }


def take(
    source: Path | str, bandwidth: Bandwidth, contexts: Sequence[int] | None = None
) -> Account:
    """The account of a checkpoint's folder, or of a geometry by name.

    A checkpoint's headers must agree with its config.json: CheckpointError names the first tensor
    that does not. ConfigError for one of `contexts` beyond the model's; absent, the usual ones.
    """
    geometry = Geometry.named(source) if isinstance(source, str) else Geometry.load(source)
    longest = geometry.max_position_embeddings
    kept = contexts or [c for c in CONTEXTS if c <= longest]
    for context in kept:
        if not 1 <= context <= longest:
            raise ConfigError(
                f"context {context} is not between 1 and max_position_embeddings {longest}."
            )
    if isinstance(source, Path):
        header.check(header.read(source), geometry)
    found = parts(geometry)
    plain = read_bytes(found, geometry)
    steps = [(rows, read_bytes(found, geometry, rows)) for rows in range(1, TILE + 1)]
    return Account(
        model=str(source),
        tensors_from="config" if isinstance(source, str) else "config = headers",
        parts=found,
        expert_bytes=expert_bytes(geometry),
        widths=tuple(
            Width(rows, expected_experts(geometry, rows), size, size / plain)
            for rows, size in steps
        ),
        draft=draft_bytes(found, geometry),
        memory=tuple(memory(geometry, c, form) for form in FORMATS for c in kept),
        torch_state={c: held_by_torch(geometry, c) for c in kept},
        growth={form: growth(geometry, form) for form in FORMATS},
        bandwidth=bandwidth,
    )
