"""Checkpoints for the engine's tests: random ones made per session, and the golden one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checkpoints
import pytest
import torch
from checkpoints import Configure

from engine.config import EngineConfig
from engine.engine import Engine
from engine.heads import capture, corpus, regenerate
from engine.heads.source import EngineSource
from engine.suite import ASSETS

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden" / "tiny-random"

TINY = ASSETS / "tiny-v4"

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _own_device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A benchmark or a trainer of another worker is no reason to refuse one here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLYWHEEL_LEASE", str(tmp_path_factory.mktemp("device") / "device.lock"))
        yield


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors are slower on more threads, and the cores belong to others too."""
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def golden() -> Path:
    """The golden checkpoint's folder."""
    if not (GOLDEN / "expected.safetensors").is_file():
        pytest.skip(f"GOLDEN VECTORS MISSING: no folder {GOLDEN}")
    return GOLDEN


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint with every layer type of the real one."""
    return checkpoints.random_checkpoint(tmp_path_factory.mktemp("small"), checkpoints.SMALL)


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint of two layers with a drafter that is right about two times in three."""
    return checkpoints.random_checkpoint(tmp_path_factory.mktemp("quick"), checkpoints.QUICK)


@pytest.fixture(scope="session")
def few_tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint with a vocabulary of sixteen."""
    return checkpoints.random_checkpoint(
        tmp_path_factory.mktemp("few"), checkpoints.FEW_TOKENS, pull=0.2
    )


@pytest.fixture(scope="session")
def configure() -> Configure:
    """An engine configuration on one thread, other fields as given."""

    def parse(**fields: Any) -> EngineConfig:
        return EngineConfig.parse({"threads": 1} | fields)

    return parse


@pytest.fixture(scope="session")
def small_engine(small: Path, configure: Configure) -> Engine:
    """One load of `small`; tests reconfigure it, so none may rely on its configuration."""
    return Engine.load(small, configure())


@pytest.fixture(scope="session")
def quick_engine(quick: Path, configure: Configure) -> Engine:
    """One load of `quick`; tests reconfigure it, so none may rely on its configuration."""
    return Engine.load(quick, configure(moe="dense"))


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of two prompts a category for the embedded checkpoint."""
    out = tmp_path_factory.mktemp("prompts")
    corpus.build(out, TINY, per_category=2)
    return out


@pytest.fixture(scope="session")
def sequences(prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three short answers of the embedded checkpoint."""
    out = tmp_path_factory.mktemp("sequences")
    regenerate.regenerate(
        out, prompts, TINY, config=EngineConfig(), temperature=1.0, max_new_tokens=40, limit=3
    )
    return out


@pytest.fixture(scope="session")
def captured(sequences: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The states behind those answers, in two shards."""
    out = tmp_path_factory.mktemp("captured")
    capture.capture(out, sequences, TINY, EngineSource(TINY, EngineConfig()), per_shard=2)
    return out
