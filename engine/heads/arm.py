"""One arm: the gate, the training and the export, in a folder that is ready to be archived."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from engine.checkpoint import checkpoint_sha256
from engine.geometry import Geometry
from engine.heads import equivalence, export, memory
from engine.heads.captured import Captured
from engine.heads.head import Head, is_draft
from engine.heads.recipe import Recipe
from engine.heads.stage import Stage, require, require_room, write_json
from engine.heads.trainer import Trainer, train
from engine.tensors import entries
from engine.train.card import machine
from engine.train.progress import say

METRICS, RESUME = "train_metrics.json", "resume.pt"
_RESUME_BYTES = 12  # of a parameter: its master and both moments


def make(
    out: Path,
    capture: Path,
    checkpoint: Path,
    recipe: Recipe,
    *,
    device: torch.device,
    head: Path | None = None,
    save_every: int = 100,
) -> dict[str, Any]:
    """Train `recipe` from the checkpoint's head, or the one in `head`; returns the metrics.

    Leaves `model.safetensors` and `train_metrics.json`. An interrupted training goes on from its
    last save, to the same bits on a CPU. Raises StageRefused where the training forward is not the
    engine's, CheckpointError where the export would lose too much.
    """
    card = require(capture, "capture")
    asked = {
        "recipe": recipe.as_dict(), "device": device.type,
        "capture": card["files"]["shards.json"]["sha256"],
        "checkpoint": checkpoint_sha256(checkpoint, head),
    }  # fmt: skip
    stage = Stage(out, "train", asked)
    if stage.done:
        metrics: dict[str, Any] = require(out, "train")["facts"]
        return metrics
    with stage:
        began_s = time.monotonic()
        data = Captured(capture, share=recipe.share)
        memory.require_room(Geometry.load(checkpoint), recipe, data.longest, device)
        mine = Head(checkpoint, device, head=head)
        require_room(out, room_bytes(mine), "train")
        agreed = equivalence.measure(mine, data)
        say(f"equivalence: {agreed.share:.1%} of the engine's own {agreed.drafted} draft tokens")
        agreed.require()
        trainer = Trainer(mine, data, recipe)
        resume = out / RESUME
        if resume.exists():
            trainer.restore(resume)
            say(f"going on after step {trainer.step_number}")
        history = train(trainer, save=resume, save_every=save_every)
        silent = trainer.without_gradient()
        say(f"gradients: {len(mine.trained) - len(silent)} of {len(mine.trained)} tensors; "
            f"none in {', '.join(silent) or 'no other'}")  # fmt: skip
        exported = export.export(mine, out)
        say(f"exported {exported['tensors']} tensors, worst round trip "
            f"{exported['worst_round_trip']:.4f} in {exported['worst_tensor']}")  # fmt: skip
        metrics = {
            "recipe": recipe.as_dict(), "steps": trainer.step_number, "sequences": len(data),
            "blocks": trainer.step_number * recipe.batch * recipe.anchors,
            "seconds": round(time.monotonic() - began_s, 3), "machine": machine(device),
            "capture_sha256": data.sha256, "start_sha256": asked["checkpoint"],
            "equivalence": {"equal": agreed.equal, "drafted": agreed.drafted},
            "trained_tensors": len(mine.trained), "trained_parameters": sum(
                e.size for e in mine.trained),
            "without_gradient": list(silent), "export": exported, "history": history,
        }  # fmt: skip
        write_json(out / METRICS, metrics)
        resume.unlink(missing_ok=True)
        stage.finish((export.FILE, METRICS), metrics)
    return metrics


def room_bytes(head: Head) -> int:
    """Disk that an arm takes: two resume files, as one replaces the other, and the export."""
    exported = sum(e.size_bytes for e in entries(head.geometry) if is_draft(e.name))
    return 2 * _RESUME_BYTES * head.parameters.size + exported
