"""How a head is trained, as data: every field is what one arm may change."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import ConfigError

OPTIMISERS = ("adamw", "muon")
_RANGES: dict[str, tuple[float, float]] = {
    "cross_entropy": (0.0, 10.0),
    "total_variation": (0.0, 10.0),
    "confidence": (0.0, 10.0),
    "anchor": (0.0, 10.0),
    "decay": (0.1, 1000.0),
    "hass_from": (0, 64),
    "width": (0, 64),
    "anchors": (1, 4096),
    "batch": (1, 4096),
    "steps": (1, 10_000_000),
    "rate": (1e-8, 1.0),
    "warm_up": (0.0, 0.9),
    "share": (0.001, 1.0),
    "seed": (0, 2**31),
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """Losses, schedule and amount of one training.

    A loss is a sum over the slots of a block, weighted by `exp(-slot / decay)` and normalised.
    """

    cross_entropy: float = 0.1  # weight of the cross-entropy with the target's distribution
    total_variation: float = 0.9  # weight of the total variation from it
    deficit: bool = True  # blocks count by how much of them is rejected
    anchor: float = 0.1  # beta: KL from the starting head, where that head was good
    confidence: float = 0.1  # weight of the confidence head's own loss; it moves no other tensor
    hass_from: int = 0  # from this slot on the head reads its own drafts, not the truth; 0: never
    decay: float = 5.0  # slots over which the weight of a slot falls to 1/e
    width: int = 0  # slots of a block that are trained; 0 takes the head's whole block
    anchors: int = 16  # blocks a sequence and step
    batch: int = 8  # sequences a step
    steps: int = 500
    optimiser: str = "muon"  # for the FP8 matrices; all other tensors are AdamW's
    rate: float = 1e-3  # AdamW's peak; muon's is `MUON_RATIO` times as high
    warm_up: float = 0.05  # share of the steps over which the rate rises
    share: float = 0.5  # of the captured corpus; so that there is twice as much for who asks
    seed: int = 1

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Recipe:
        """Validate a JSON object of fields, absent ones being defaults; ConfigError if wrong."""
        known = {field.name: field for field in dataclasses.fields(cls)}
        for name, value in raw.items():
            if name not in known:
                raise ConfigError(
                    f"Unknown recipe field {name!r}; known fields: {', '.join(sorted(known))}."
                )
            _check(name, value, type(known[name].default))
        recipe = cls(**raw)
        if recipe.cross_entropy + recipe.total_variation <= 0:
            raise ConfigError("A recipe needs cross_entropy or total_variation above zero.")
        return recipe

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return dataclasses.asdict(self)

    def require_fit(self, slots: int) -> None:
        """ConfigError where it names a slot that a head's block of so many does not have."""
        if self.width > slots or self.hass_from >= slots:
            raise ConfigError(
                f"width {self.width} and hass_from {self.hass_from} must fit the head's block "
                f"of {slots} slots."
            )

    def factor(self, step: int) -> float:
        """Share of the peak rate at `step`: a linear warm-up, then half a cosine down to zero."""
        warm = max(1, round(self.warm_up * self.steps))
        if step < warm:
            return (step + 1) / warm
        done = (step - warm) / max(1, self.steps - warm)
        return 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))


def _check(name: str, value: Any, kind: type) -> None:
    if kind is bool:
        if not isinstance(value, bool):
            raise ConfigError(f"The recipe's {name} must be true or false; got {value!r}.")
        return
    if kind is str:
        if value not in OPTIMISERS:
            raise ConfigError(f"The recipe's {name} must be one of {', '.join(OPTIMISERS)}; "
                              f"got {value!r}.")  # fmt: skip
        return
    low, high = _RANGES[name]
    number = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not low <= value <= high:
        word = "an integer" if kind is int else "a number"
        raise ConfigError(f"The recipe's {name} must be {word} from {low:g} to {high:g}; "
                          f"got {value!r}.")  # fmt: skip
