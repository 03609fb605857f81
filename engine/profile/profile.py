"""A profile as data: what was profiled, the tree, the ceiling and the ranking."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from engine.profile.ceiling import Ceiling
from engine.profile.phase import Phase, tree
from engine.profile.residual import Residual, rank
from engine.profile.span import Path, Steps

MODE = "profile"


@dataclass(frozen=True, slots=True)
class Profile:
    """One step of one configuration, taken apart. `id` tells runs apart; `mode` never changes."""

    step: str  # what was timed, e.g. `plain decode at 512 tokens, torch`
    synthetic: bool  # random weights: nothing about acceptance may be read from it
    config: dict[str, Any]
    steps: int
    root: Phase
    ceiling: Ceiling
    ranking: tuple[Residual, ...]
    mode: str = MODE
    id: str = field(default_factory=lambda: secrets.token_hex(8))

    @classmethod
    def of(
        cls,
        step: str,
        timed: Steps,
        bytes_of: Mapping[Path, float],
        ceiling: Ceiling,
        *,
        config: dict[str, Any],
        synthetic: bool = False,
    ) -> Profile:
        """Build and check the tree, and rank it. Raises ProfileError as `phase.tree` does."""
        root = tree(timed, bytes_of)
        return cls(step, synthetic, config, len(timed.step_ns), root, ceiling, rank(root, ceiling))

    def phases(self) -> list[dict[str, Any]]:
        """Every phase as plain values, parents first."""
        return [
            {
                "path": phase.name,
                "ms": phase.ms,
                "own_ms": phase.own_ms,
                "launches": phase.launches,
                "bytes": phase.bytes,
            }
            for phase in self.root.walk()
        ]

    def json(self) -> dict[str, Any]:
        """Plain values; the unit is part of every name."""
        return {
            "mode": self.mode,
            "clean": False,
            "id": self.id,
            "step": self.step,
            "synthetic": self.synthetic,
            "config": self.config,
            "steps": self.steps,
            "phases": self.phases(),
            "ceiling": {"source": self.ceiling.source, "gb_s_by_bytes": self.ceiling.points},
            "ranking": [
                {**asdict(r), "of_ceiling": r.of_ceiling, "ms_to_gain": r.ms_to_gain,
                 "impossible": r.impossible}
                for r in self.ranking
            ],
        }  # fmt: skip

    def text(self) -> str:
        """The JSON document."""
        return json.dumps(self.json(), indent=1, allow_nan=False)
