"""Every stage once at toy scale: what never ran there fails in the last hour of a night."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.checkpoint import checkpoint_sha256
from engine.config import EngineConfig
from engine.heads import arm, capture, corpus, export, regenerate
from engine.heads.recipe import Recipe
from engine.heads.source import Source
from engine.heads.stage import Stage, require

# Of each amount as little as there can be, and a resume file at every step.
STEPS, BATCH, ANCHORS, SEQUENCES, TOKENS = 2, 1, 2, 2, 32


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What is tried: `captured` is a finished capture, whose training alone is then tried."""

    checkpoint: Path
    recipe: Recipe
    device: torch.device
    config: EngineConfig
    temperature: float = 1.0
    head: Path | None = None
    captured: Path | None = None

    @property
    def toy(self) -> Recipe:
        """The recipe with everything in it but its amounts."""
        return dataclasses.replace(self.recipe, steps=STEPS, batch=BATCH, anchors=ANCHORS)

    def as_dict(self) -> dict[str, Any]:
        """What a rehearsal answers for."""
        return {
            "recipe": self.recipe.as_dict(), "device": self.device.type,
            "config": self.config.canonical(), "temperature": self.temperature,
            "checkpoint": checkpoint_sha256(self.checkpoint, self.head),
            "capture": None if self.captured is None else str(self.captured),
        }  # fmt: skip


def rehearse(asked: Rehearsal, source: Callable[[], Source], out: Path | None) -> dict[str, Any]:
    """Carry every stage out in a folder that is thrown away; with `out` its card says how it went.

    Raises what the stage that is at fault raises.
    """
    with _card(asked, out) as stage:
        if stage is not None and stage.done:
            facts: dict[str, Any] = require(stage.folder, stage.name)["facts"]
            return facts
        facts = _all(asked, source)
        if stage is not None:
            stage.finish((), facts)
    return facts


@contextlib.contextmanager
def _card(asked: Rehearsal, out: Path | None) -> Iterator[Stage | None]:
    if out is None:
        yield None
        return
    with Stage(out, "rehearse", asked.as_dict()) as stage:
        yield stage


def _all(asked: Rehearsal, source: Callable[[], Source]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="heads-") as folder:
        root = Path(folder)
        captured = asked.captured or _captured(asked, source, root)
        metrics = arm.make(
            root / "arm", captured, asked.checkpoint, asked.toy, device=asked.device,
            head=asked.head, save_every=1,
        )  # fmt: skip
        export.install(asked.checkpoint, root / "arm", root / "installed")
    return {
        "rehearsed": ["train", "install"] if asked.captured else
        ["corpus", "regenerate", "capture", "train", "install"],
        "equivalence": metrics["equivalence"],
    }  # fmt: skip


def _captured(asked: Rehearsal, source: Callable[[], Source], root: Path) -> Path:
    """The stages before the training."""
    corpus.build(root / "corpus", asked.checkpoint, per_category=1)
    regenerate.regenerate(
        root / "sequences", root / "corpus", asked.checkpoint, config=asked.config,
        temperature=asked.temperature, max_new_tokens=TOKENS, limit=SEQUENCES,
    )  # fmt: skip
    capture.capture(
        root / "capture", root / "sequences", asked.checkpoint, source(), per_shard=1
    )
    return root / "capture"
