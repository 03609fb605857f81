"""Unit tests need no device, no model and no torch; the device lock is each test's own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_LEASE", str(tmp_path / "device.lock"))
    monkeypatch.delenv("FLYWHEEL_LEDGER", raising=False)
