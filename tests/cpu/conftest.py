"""Checkpoints for the engine's tests: random ones made per session, and the golden one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import checkpoints
import pytest
import torch

from engine.config import EngineConfig
from engine.engine import Engine

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden" / "tiny-random"

torch.set_num_threads(1)

Configure = Callable[..., EngineConfig]


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
