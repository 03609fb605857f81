"""Faults run real processes; each test has a device lock of its own."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from boxes import Box

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session", autouse=True)
def _lean_gates() -> Iterator[None]:
    """A patch's tests here draw no examples: the plugins for that take two thirds of a start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_ADDOPTS", "-p no:schemathesis -p no:hypothesispytest")
        yield


@pytest.fixture(autouse=True)
def _own_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_LEASE", str(tmp_path / "device.lock"))
    # The box of a test is shared, and how busy it is must not decide what a test finds.
    monkeypatch.setenv("FLYWHEEL_MAX_LOAD", "1000")
    monkeypatch.delenv("FLYWHEEL_LEDGER", raising=False)
    # The scripted engine starts without site packages, to be quick, also where a test supervises it
    # in its own process.
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def signals_as_before() -> Iterator[None]:
    """For a supervisor or guard that runs in the test's own process."""
    numbers = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    made = Box(tmp_path)
    yield made
    made.clear()
