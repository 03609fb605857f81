"""Training of a head on a GPU: steps that are recorded as graphs are the steps that they record."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.geometry import Geometry
from engine.heads import capture, full, head as heads, regenerate
from engine.heads.captured import Captured
from engine.heads.head import Head
from engine.heads.recipe import Recipe
from engine.heads.regenerate import Sample
from engine.heads.source import DeviceSource
from engine.heads.stage import Stage
from engine.heads.trainer import Trainer, train
from engine.suite import ASSETS

pytestmark = pytest.mark.gpu
TINY = ASSETS / "tiny-v4"
# Sequences of two lengths: batches of both shapes are recorded, and take turns.
LENGTHS = (90, 200, 480, 500)
RECIPE = Recipe.parse({"steps": 24, "batch": 2, "anchors": 6, "share": 1.0, "rate": 0.001})


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the embedded checkpoint holds while it reads random ids."""
    root = tmp_path_factory.mktemp("heads")
    dice = random.Random(3)
    vocabulary = Geometry.load(TINY).vocab_size
    samples = [
        Sample(
            f"s-{i}", "reasoning", tuple(dice.randrange(vocabulary) for _ in range(20)),
            tuple(dice.randrange(vocabulary) for _ in range(LENGTHS[i % 4])), "length", 1.0, i,
        )
        for i in range(12)
    ]  # fmt: skip
    with Stage(root / "sequences", "regenerate", {}) as stage:
        lines = "".join(json.dumps(asdict(s)) + "\n" for s in samples)
        (stage.folder / regenerate.FILE).write_text(lines)
        stage.finish((regenerate.FILE,), {})
    source = DeviceSource.load(TINY, EngineConfig())
    capture.capture(root / "capture", root / "sequences", TINY, source, per_shard=4)
    return root / "capture"


def _trained(captured: Path, tmp_path: Path, *, recorded: bool) -> tuple[torch.Tensor, float]:
    """The masters, and the last loss, after all steps."""
    head = Head(TINY, torch.device("cuda"))
    trainer = Trainer(head, Captured(captured), RECIPE, recorded=recorded)
    history = train(trainer, save=tmp_path / f"{recorded}.pt", save_every=10)
    assert "mtp.0.attn.wkv.weight" in trainer.graded
    return head.parameters.master.clone(), history[-1]["loss"]


def test_recorded_steps_end_where_the_same_steps_end_unrecorded(
    captured: Path, tmp_path: Path
) -> None:
    begun = Head(TINY, torch.device("cuda")).parameters.master
    (mine, loss), (plain, other) = (
        _trained(captured, tmp_path, recorded=recorded) for recorded in (True, False)
    )
    moved = (plain - begun).norm()
    assert moved > 0
    assert (mine - plain).norm() < 0.02 * moved
    assert loss == pytest.approx(other, rel=0.01)


def test_a_training_that_is_taken_up_again_goes_on_recorded(captured: Path, tmp_path: Path) -> None:
    whole, _ = _trained(captured, tmp_path, recorded=True)
    begun = Head(TINY, torch.device("cuda")).parameters.master
    head = Head(TINY, torch.device("cuda"))
    trainer = Trainer(head, Captured(captured), RECIPE)
    trainer.restore(tmp_path / "True.pt")  # left after step 20
    assert trainer.step_number == 20
    train(trainer, save=tmp_path / "again.pt")
    assert (head.parameters.master - whole).norm() < 0.02 * (whole - begun).norm()


def test_packed_experts_give_the_gradients_that_decoded_ones_give() -> None:
    """Of one step: later ones drift apart, as the optimiser turns rounding into directions."""
    device, found = torch.device("cuda"), []
    for packed in (True, False):
        head = Head(TINY, device, packed=packed)
        trainer = Trainer(head, full.Drawn(head.geometry, device, RECIPE.batch, 200), RECIPE)
        trainer.step()
        found.append(head.parameters.gradient())
    assert found[1].norm() > 0
    assert (found[0] - found[1]).norm() < 0.1 * found[1].norm()


def test_a_packed_head_of_random_weights_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "DECODED_BYTES", 0)
    device = torch.device("cuda")
    facts = full.show(Geometry.load(TINY), device, RECIPE, steps=3, length=200)
    assert facts["packed"]
    assert 0 < facts["peak_bytes"] < facts["stated_bytes"]["total"]
    assert facts["export"]["otherwise"] == []
