"""A checkpoint, and the two servers that the tests talk to."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import HERE, Running, started

ASSETS = HERE.parents[1] / "engine" / "assets" / "tiny-v4"


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded checkpoint where its weights are there, else a random one."""
    if (ASSETS / "model.safetensors").exists():
        return ASSETS
    from checkpoints import QUICK, random_checkpoint  # torch, only where it is needed

    vocabulary = {"vocab_size": 4096, "dspark_noise_token_id": 9}
    folder = random_checkpoint(tmp_path_factory.mktemp("checkpoint"), QUICK | vocabulary)
    shutil.copy(ASSETS / "tokenizer.json", folder)
    return folder


@pytest.fixture(scope="session")
def best(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Path:
    """A best.json as the optimisation loop leaves it."""
    path = tmp_path_factory.mktemp("best") / "best.json"
    config = {"threads": 1, "draft_width": 3}
    raw = {"checkpoint": str(checkpoint), "head": None, "config": config, "decision": 7}
    path.write_text(json.dumps(raw))
    return path


@pytest.fixture(scope="session")
def server(best: Path) -> Iterator[Running]:
    """The real engine."""
    command = ["-m", "engine.server", "--config", str(best), "--name", "tiny"]
    with started(command) as running:
        yield running


@pytest.fixture(scope="session")
def scripted() -> Iterator[Running]:
    """The real server around an engine that says what the tests need; its queue has one place."""
    with started([str(HERE / "scripted.py")]) as running:
        yield running
