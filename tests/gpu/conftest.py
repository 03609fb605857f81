"""Tests that need a CUDA device; they skip, and say so, where there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The box comes first: other tests leave this very process on the device."""
    items.sort(key=lambda item: item.path.parent == HERE and item.path.name != "test_box.py")


@pytest.fixture
def alone() -> None:
    """Skips where other processes of the same tests hold the device."""
    if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
        pytest.skip("BOX GATE SKIPPED: it needs the device alone, in one process")


@pytest.fixture(autouse=True, scope="module")
def _device() -> None:
    """Before any other fixture of a module, which may be slow where there is no device."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


@pytest.fixture(autouse=True)
def _own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
