"""Drivers that do not exist: the calls of NVML, answered from a table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flywheel.box import device
from flywheel.box.device import Gpu, GpuProcess

H200 = "GPU-8a6b2e10-0000-1111-2222-333344445555"


def process(pid: int, used_bytes: int | None = None) -> Any:
    """One row of a process list."""
    return SimpleNamespace(pid=pid, usedGpuMemory=used_bytes)


class Nvml:
    """A healthy H200 that is idle; ``answers`` replaces calls, None makes one unsupported."""

    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0
    nvmlMemory_v2 = 0x2000028  # noqa: N815

    def __init__(self, *, uuids: tuple[str, ...] = (H200,), loaded: bool = True, **answers: Any):
        self.uuids = uuids
        self.loaded = loaded
        self.shut = 0
        self.answers: dict[str, Any] = {
            "nvmlDeviceGetName": "NVIDIA H200",
            "nvmlSystemGetDriverVersion": "600.1",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=150 << 30, used=0),
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetTemperature": 40,
            "nvmlDeviceGetPowerUsage": 70_500,
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=3),
            "nvmlDeviceGetCurrentClocksEventReasons": 0,
            "nvmlDeviceGetPerformanceState": 0,
            "nvmlDeviceGetPersistenceMode": 1,
            "nvmlDeviceGetEccMode": [1, 1],
            "nvmlDeviceGetMigMode": [0, 0],
            "nvmlDeviceGetComputeRunningProcesses": [],
            "nvmlDeviceGetGraphicsRunningProcesses": [],
            "nvmlDeviceGetMPSComputeRunningProcesses": [],
            **answers,
        }

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.loaded:
            raise RuntimeError("driver not loaded")

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.shut += 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return self.uuids[handle]

    def nvmlDeviceGetClockInfo(self, _: int, kind: int) -> int:  # noqa: N802
        return {self.NVML_CLOCK_SM: 1980, self.NVML_CLOCK_MEM: 3201}[kind]

    def __getattr__(self, name: str) -> Any:
        def call(*_: object, **__: object) -> Any:
            answer = self.answers.get(name)
            if answer is None:
                raise RuntimeError("not supported")
            return answer

        return call


def install(patch: pytest.MonkeyPatch, nvml: Nvml) -> Nvml:
    """Make this driver the box's."""
    patch.setattr(device.importlib, "import_module", lambda _: nvml)
    patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return nvml


def gpu(**fields: Any) -> Gpu:
    """A device of which only ``fields`` are known."""
    blank: dict[str, Any] = dict.fromkeys(
        ("name", "driver", "mem_total_bytes", "mem_used_bytes", "sm_clock_mhz", "temperature_c",
         "power_w", "busy_percent", "throttle_bits", "processes")
    )  # fmt: skip
    return Gpu(**{"index": 0, **blank, **fields})


def on_device(*processes: GpuProcess, **fields: Any) -> Gpu:
    """A device with these processes on it."""
    return gpu(processes=processes, **fields)
