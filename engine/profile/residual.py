"""What is left to gain in each phase: its time, less the part that its bytes explain. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from engine.profile.ceiling import Ceiling
from engine.profile.phase import Phase

# A plain read misses no more than this of the best that a kernel has done on the same box.
ABOVE = 1.05


@dataclass(frozen=True, slots=True)
class Residual:
    """One phase without phases inside it, or the time that one spends in none of its children."""

    name: str
    ms: float
    launches: float
    bytes: float
    achieved_gb_s: float
    ceiling_gb_s: float

    @property
    def of_ceiling(self) -> float:
        """Achieved bandwidth over the ceiling of launches of this size."""
        return self.achieved_gb_s / self.ceiling_gb_s if self.ceiling_gb_s else 0.0

    @property
    def ms_to_gain(self) -> float:
        """`ms x (1 - achieved / ceiling)`; nothing where the ceiling is passed."""
        return self.ms * max(0.0, 1.0 - self.of_ceiling)

    @property
    def impossible(self) -> bool:
        """Faster than a plain read of its bytes: they come from a cache, or are counted wrong."""
        return self.of_ceiling > ABOVE


def rank(root: Phase, ceiling: Ceiling) -> tuple[Residual, ...]:
    """Every leaf and every parent's own time, most to gain first."""
    found = [_leaf(phase, ceiling) for phase in root.walk() if not phase.children]
    found += [
        Residual(f"{phase.name}, between phases", phase.own_ms, 0.0, 0.0, 0.0, 0.0)
        for phase in root.walk()
        if phase.children and phase.own_ms > 0
    ]
    return tuple(sorted(found, key=lambda r: -r.ms_to_gain))


def _leaf(phase: Phase, ceiling: Ceiling) -> Residual:
    each = phase.bytes / max(phase.launches, 1.0)
    return Residual(
        name=phase.name,
        ms=phase.ms,
        launches=phase.launches,
        bytes=phase.bytes,
        achieved_gb_s=phase.bytes / phase.ms / 1e6 if phase.ms else 0.0,
        ceiling_gb_s=ceiling.gb_s(each) if phase.bytes else 0.0,
    )
