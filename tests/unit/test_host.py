"""Probes are optional, refusals are sentences, and a strange driver cannot crash the loop."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flywheel import host
from flywheel.host import Gpu, GpuProcess, Host

IDLE = Host(0.5, 2, 16 << 30, 8 << 30, 50 << 30, ())


class Nvml:
    """A driver that answers everything but memory, as a unified-memory box does."""

    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, broken: bool = False) -> None:
        self.broken = broken
        self.shut = False

    def nvmlInit(self) -> None:  # noqa: N802
        if self.broken:
            raise RuntimeError("driver not loaded")

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.shut = True

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "nvmlDeviceGetCount": 2,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetName": "a GPU",
            "nvmlSystemGetDriverVersion": "600.1",
            "nvmlDeviceGetClockInfo": 1980,
            "nvmlDeviceGetTemperature": 40,
            "nvmlDeviceGetPowerUsage": 70_500,
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=3),
            "nvmlDeviceGetComputeRunningProcesses": [
                SimpleNamespace(pid=os.getpid(), usedGpuMemory=None)
            ],
        }

        def call(*_: object) -> Any:
            if name not in answers:
                raise RuntimeError("not supported")
            return answers[name]

        return call


def test_this_box_can_be_looked_at(tmp_path: Path) -> None:
    look = host.probe(tmp_path)
    assert look.cores
    assert look.disk_free_bytes
    assert host.cores() == look.cores
    assert look.to_json()["gpus"] is not None
    assert host.load_limit(2) == 7.0


def test_a_driver_without_memory_figures_leaves_blanks(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    monkeypatch.setattr(importlib, "import_module", lambda _: nvml)
    found = host.gpus()
    assert len(found) == 2
    gpu = found[0]
    assert (gpu.name, gpu.driver, gpu.power_w, gpu.busy_percent) == ("a GPU", "600.1", 70.5, 3)
    assert (gpu.mem_total_bytes, gpu.mem_used_bytes, gpu.throttle_bits) == (None, None, None)
    assert gpu.processes is not None
    assert gpu.processes[0].pid == os.getpid()
    assert nvml.shut


def test_no_driver_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib, "import_module", lambda _: Nvml(broken=True))
    assert host.gpus() == ()

    def missing(_: str) -> None:
        raise ImportError

    monkeypatch.setattr(importlib, "import_module", missing)
    assert host.gpus() == ()


def gpu_with(*processes: GpuProcess) -> Host:
    gpu = Gpu(0, "a GPU", None, None, None, None, None, None, None, None, processes)
    return Host(0.5, 2, 16 << 30, 8 << 30, 50 << 30, (gpu,))


def test_what_keeps_a_run_from_starting_is_one_sentence() -> None:
    assert host.refuses(IDLE) is None
    assert host.refuses(Host(None, None, None, None, None, ())) is None
    busy = gpu_with(GpuProcess(77, "python", 5))
    assert host.refuses(busy) == "process 77 (python) is using GPU 0."
    assert host.refuses(busy, own_pids=(77,)) is None
    nameless = host.refuses(gpu_with(GpuProcess(78, None, None)))
    assert nameless is not None
    assert "an unknown program" in nameless
    low = Host(0.5, 2, 16 << 30, 100, 50 << 30, ())
    assert "of memory is free" in (host.refuses(low) or "")
    full = Host(0.5, 2, 16 << 30, 8 << 30, 100, ())
    assert "of disk space is free" in (host.refuses(full) or "")
    assert "load of the last minute" in (host.refuses(IDLE, max_load=0.1) or "")
