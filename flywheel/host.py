"""What the box looks like right now: psutil and NVML probes, every figure optional.

The only module that touches psutil and NVML.  A probe that fails is a missing figure, never an
error: unified-memory boxes report no device memory, containers no process list.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil as _psutil

_T = TypeVar("_T")
# Untyped packages, called for what they answer and never trusted for its shape.
psutil: Any = _psutil

MEM_FLOOR_BYTES = 1 << 30
DISK_FLOOR_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds the device: pid, its name and its device memory where known."""

    pid: int
    name: str | None
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device as NVML describes it."""

    index: int
    name: str | None
    driver: str | None
    mem_total_bytes: int | None
    mem_used_bytes: int | None
    sm_clock_mhz: int | None
    temperature_c: int | None
    power_w: float | None
    busy_percent: int | None
    throttle_bits: int | None
    processes: tuple[GpuProcess, ...] | None


@dataclass(frozen=True, slots=True)
class Host:
    """One look at the box."""

    load_1m: float | None
    cores: int | None
    mem_total_bytes: int | None
    mem_available_bytes: int | None
    disk_free_bytes: int | None
    gpus: tuple[Gpu, ...]

    def to_json(self) -> dict[str, Any]:
        """The look as a JSON object."""
        return asdict(self)


def _try(probe: Callable[[], _T]) -> _T | None:
    """The probe's answer; None when the driver, the platform or a permission is missing."""
    try:
        return probe()
    except Exception:  # NVML raises a class per error code, psutil and the OS their own
        return None


def _process(pid: int, used: object) -> GpuProcess:
    name = _try(lambda: str(psutil.Process(pid).name()))
    return GpuProcess(pid, name, used if isinstance(used, int) else None)


def _gpu(nvml: Any, index: int) -> Gpu | None:
    handle = _try(lambda: nvml.nvmlDeviceGetHandleByIndex(index))
    if handle is None:
        return None
    memory = _try(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    running = _try(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    power = _try(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    busy = _try(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    return Gpu(
        index=index,
        name=_try(lambda: str(nvml.nvmlDeviceGetName(handle))),
        driver=_try(lambda: str(nvml.nvmlSystemGetDriverVersion())),
        mem_total_bytes=None if memory is None else int(memory.total),
        mem_used_bytes=None if memory is None else int(memory.used),
        sm_clock_mhz=_try(lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))),
        temperature_c=_try(
            lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        ),
        power_w=None if power is None else power / 1000.0,
        busy_percent=None if busy is None else int(busy.gpu),
        throttle_bits=_try(lambda: int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))),
        processes=None
        if running is None
        else tuple(_process(int(one.pid), one.usedGpuMemory) for one in running),
    )


def gpus() -> tuple[Gpu, ...]:
    """The devices that NVML shows; none when there is no driver."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return ()
    if _try(lambda: (nvml.nvmlInit(), True)) is None:
        return ()
    try:
        count = _try(lambda: int(nvml.nvmlDeviceGetCount())) or 0
        found = (_gpu(nvml, index) for index in range(count))
        return tuple(gpu for gpu in found if gpu is not None)
    finally:
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()


def probe(folder: Path) -> Host:
    """One look at the box; ``folder`` says whose disk is meant."""
    memory = _try(psutil.virtual_memory)
    return Host(
        load_1m=_try(lambda: os.getloadavg()[0]),
        cores=cores(),
        mem_total_bytes=None if memory is None else int(memory.total),
        mem_available_bytes=None if memory is None else int(memory.available),
        disk_free_bytes=_try(lambda: shutil.disk_usage(folder).free),
        gpus=gpus(),
    )


def cores() -> int:
    """Cores that this process may use."""
    return _try(lambda: len(os.sched_getaffinity(0))) or os.cpu_count() or 1


def load_limit(cores: int) -> float:
    """The one-minute load above which a run was not alone: the engine's own threads and as
    many again twice over, since an idle desktop or a CI runner never sits at zero."""
    return 3.0 * cores + 1.0


def refuses(
    host: Host,
    *,
    own_pids: Collection[int] = (),
    mem_floor_bytes: int = MEM_FLOOR_BYTES,
    disk_floor_bytes: int = DISK_FLOOR_BYTES,
    max_load: float | None = None,
) -> str | None:
    """Why no engine may be started on this box now, as one sentence; None when it may.

    Pure.  Missing figures refuse nothing.
    """
    for gpu in host.gpus:
        for process in gpu.processes or ():
            if process.pid not in own_pids:
                name = process.name or "an unknown program"
                return f"process {process.pid} ({name}) is using GPU {gpu.index}."
    for what, free, floor in (
        ("memory", host.mem_available_bytes, mem_floor_bytes),
        ("disk space", host.disk_free_bytes, disk_floor_bytes),
    ):
        if free is not None and free < floor:
            return (
                f"only {free / 2**30:.2f} GiB of {what} is free, and a run wants "
                f"{floor / 2**30:.2f} GiB."
            )
    if max_load is not None and host.load_1m is not None and host.load_1m > max_load:
        return f"the load of the last minute is {host.load_1m:.1f}, over {max_load:.1f}."
    return None
