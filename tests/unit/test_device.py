"""The device by name, whatever the driver answers, and a device that only looks busy."""

from __future__ import annotations

import importlib
import os
from dataclasses import replace

import pytest
from nvml import H200, Nvml, gpu, install, process

from flywheel.box import device

A, B = "GPU-aaaa-1", "GPU-bbbb-2"


@pytest.mark.parametrize(
    ("asked", "index"),
    [
        (None, 0), ("0", 0), ("1,0", 1), ("2", None), ("", None), ("-1", None),
        ("NoDevFiles", None), (A, 0), ("GPU-bb", 1), (f"{B},{A}", 1), ("GPU-cc", None),
        ("MIG-1234", None),
    ],
)  # fmt: skip
def test_the_first_visible_device_is_the_device(asked: str | None, index: int | None) -> None:
    assert device.visible((A, B), asked) == index
    assert device.visible((), asked) is None
    assert device.visible((A,), "MIG-1234") == 0


def test_the_key_is_the_uuid_or_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = install(monkeypatch, Nvml(uuids=(A, B)))
    assert device.key() == A
    for asked, key in {"1": B, B[:7]: B, "": "cpu", "7": "cpu", "MIG-12,0": "MIG-12"}.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", asked)
        assert device.key() == key
    assert nvml.shut
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    install(monkeypatch, Nvml(loaded=False))
    assert device.key() == "cpu"


def test_a_device_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    lists = {
        "nvmlDeviceGetComputeRunningProcesses": [process(os.getpid(), 5 << 30)],
        "nvmlDeviceGetMPSComputeRunningProcesses": [process(os.getpid(), 5 << 30), process(2**22)],
        "nvmlDeviceGetGraphicsRunningProcesses": [process(2**22 + 1, 9)],
    }
    nvml = install(monkeypatch, Nvml(nvmlDeviceGetCurrentClocksEventReasons=0x44, **lists))
    (found,) = device.gpus()
    assert (found.uuid, found.name, found.driver) == (H200, "NVIDIA H200", "600.1")
    assert (found.sm_clock_mhz, found.max_sm_clock_mhz, found.mem_clock_mhz) == (1980, 1980, 3201)
    assert (found.power_w, found.power_limit_w, found.performance_state) == (70.5, 700.0, 0)
    assert (found.persistence, found.ecc, found.mig, found.unified) == (True, True, False, False)
    assert found.throttles == ("software power cap", "hardware thermal slowdown")
    assert found.processes is not None
    kinds = [(one.pid, one.kind) for one in found.processes]
    assert kinds == [(os.getpid(), "compute"), (2**22, "mps"), (2**22 + 1, "graphics")]
    assert found.processes[0].name
    assert found.processes[1].name is None
    assert nvml.shut == 1
    assert device.mine((found,)) is found


def test_a_driver_without_memory_figures_is_a_unified_box(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Nvml(nvmlDeviceGetMemoryInfo=None, nvmlDeviceGetEnforcedPowerLimit=None))
    (found,) = device.gpus()
    assert found.unified
    assert (found.mem_total_bytes, found.mem_used_bytes, found.power_limit_w) == (None, None, None)


def test_a_driver_that_lists_no_processes_is_told_from_an_empty_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lists = ("Compute", "Graphics", "MPSCompute")
    silent = {f"nvmlDeviceGet{kind}RunningProcesses": None for kind in lists}
    install(monkeypatch, Nvml(**silent))
    assert device.gpus()[0].processes is None
    install(monkeypatch, Nvml())
    assert device.gpus()[0].processes == ()


def test_no_driver_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Nvml(loaded=False))
    assert device.gpus() == ()

    def missing(_: str) -> None:
        raise ImportError

    monkeypatch.setattr(importlib, "import_module", missing)
    assert device.gpus() == ()
    assert device.key() == "cpu"


def test_a_gpu_that_is_busy_slow_and_cold_is_stuck() -> None:
    gb10 = gpu(busy_percent=96, sm_clock_mhz=800, max_sm_clock_mhz=2400, power_w=20.0,
               performance_state=0)  # fmt: skip
    assert device.stuck(gb10) == (
        "GPU 0 is stuck at low power: in P0, 96 % busy at 800 of 2400 MHz and 20 W."
    )
    assert device.stuck(replace(gb10, power_limit_w=140.0)) is not None
    # Busy, slow and hot is a power limit at work; idle and slow is idleness.
    for healthy in (
        replace(gb10, power_w=90.0), replace(gb10, busy_percent=3),
        replace(gb10, sm_clock_mhz=2300), replace(gb10, power_limit_w=40.0),
        replace(gb10, max_sm_clock_mhz=None), replace(gb10, power_w=None),
    ):  # fmt: skip
        assert device.stuck(healthy) is None


def test_the_energy_is_that_of_the_gpu_which_a_run_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "nvmlDeviceGetTotalEnergyConsumption"
    install(monkeypatch, Nvml(**{name: 123_456}))
    assert device.energy_mj() == 123_456
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1")
    assert device.energy_mj() is None
    for silent in (Nvml(), Nvml(uuids=(), **{name: 1}), Nvml(loaded=False, **{name: 1})):
        install(monkeypatch, silent)
        assert device.energy_mj() is None
