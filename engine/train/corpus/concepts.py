"""Hand-written notes on general ideas: the raw material of explanations."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Concept:
    """One idea in nine clauses; ``steps`` are imperative clauses, four of them."""

    name: str
    field: str
    definition: str
    analogy: str
    why: str
    steps: tuple[str, ...]
    example: str
    pitfall: str
    use: str
    contrast: str


def load(path: Path) -> tuple[Concept, ...]:
    """Notes from their JSON file, in its order."""
    entries = json.loads(path.read_text(encoding="utf-8"))
    return tuple(Concept(**{**entry, "steps": tuple(entry["steps"])}) for entry in entries)


CONCEPTS = load(Path(__file__).parents[2] / "assets" / "corpus" / "concepts.json")
