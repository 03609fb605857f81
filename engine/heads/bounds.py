"""What binds a head: its corpus, its capacity or the target's own doubt? Measured on captures.

Four numbers side by side: the ceiling of the width; what this very architecture reaches when it may
learn one sequence by heart; what the head reaches on the sequences it was trained on; and on
sequences that it never saw. The gap that is widest is what binds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from statistics import fmean

import torch

from engine.heads.captured import Captured, Item
from engine.heads.head import Head
from engine.heads.recipe import Recipe
from engine.heads.replay import Replayed, replay
from engine.heads.trainer import Trainer, train
from engine.train.forward import Forward

BY_HEART: dict[str, object] = {
    "batch": 1, "anchors": 16, "anchor": 0.0, "deficit": False, "confidence": 0.0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bounds:
    """Mean taus; `sure` is the mean probability of the target's likeliest token."""

    ceiling: float
    by_heart: float
    by_heart_before: float
    trained_on: float
    unseen: float
    sure: float
    entropy_nats: float

    def binds(self) -> str:
        """Which of the gaps is widest."""
        gaps = {
            "the target's own doubt, or this architecture": self.ceiling - self.by_heart,
            "training: steps, rate or loss": self.by_heart - self.trained_on,
            "the corpus": self.trained_on - self.unseen,
        }
        return max(gaps, key=gaps.__getitem__)


def measure(
    checkpoint: Path,
    data: Captured,
    *,
    head: Path | None,
    trained: int,
    device: torch.device,
    steps: int = 200,
    sequences: int = 8,
) -> Bounds:
    """Bounds of the head in `head`, trained on the first `trained` sequences of `data`.

    `steps` are those of the training by heart of one sequence; `sequences` of each kind are
    replayed.
    """
    mine = Head(checkpoint, device, head=head)
    forward = Forward(mine.geometry, device, rounding=True)
    width = mine.geometry.dspark_block_size
    seen = [data.item(i) for i in range(min(trained, sequences))]
    unseen = [data.item(i) for i in range(trained, min(len(data), trained + sequences))]
    one = data.item(0)
    fresh = Head(checkpoint, device, head=head)
    before = replay(fresh, forward, one, width)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(fresh, data.only(0), Recipe.parse({**BY_HEART, "steps": steps}))
        train(trainer, save=Path(folder) / "resume.pt", save_every=steps + 1)
    sure, entropy = doubt(mine, forward, [*seen, *unseen])
    return Bounds(
        float(width + 1), float(replay(fresh, forward, one, width).tau), float(before.tau),
        _mean([replay(mine, forward, i, width) for i in seen]),
        _mean([replay(mine, forward, i, width) for i in unseen]), sure, entropy,
    )  # fmt: skip


@torch.no_grad()
def doubt(head: Head, forward: Forward, items: Sequence[Item]) -> tuple[float, float]:
    """Mean top probability and mean entropy (nats) of the target over the replies."""
    tops, entropies = [], []
    for item in items:
        hidden = item.hidden[item.prompt - 1 :].to(head.device, head.dtype)
        log = torch.log_softmax(forward.logits(head.weights, hidden), -1)
        tops.append(float(log.max(-1).values.exp().mean()))
        entropies.append(float(-(log.exp() * log).sum(-1).mean()))
    return fmean(tops), fmean(entropies)


def _mean(found: Sequence[Replayed]) -> float:
    taus = [r.tau for r in found]
    return float(sum(taus, Fraction()) / len(taus)) if taus else float("nan")
