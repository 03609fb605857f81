"""Which device this box measures on, and what NVML says of it; every figure is optional.

The only module that touches NVML.  A probe that fails is a missing figure, never an error:
unified-memory boxes report no device memory, containers no process list.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

_T = TypeVar("_T")

CPU = "cpu"
COMPUTE, GRAPHICS, MPS = "compute", "graphics", "mps"
_LISTS = (
    (COMPUTE, "nvmlDeviceGetComputeRunningProcesses"),
    (MPS, "nvmlDeviceGetMPSComputeRunningProcesses"),
    (GRAPHICS, "nvmlDeviceGetGraphicsRunningProcesses"),
)
# Bits of NVML's clock event reasons that mean: slower than asked for.
THROTTLES = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
# A GPU that is this busy, this slow and this cold is stuck in a low power state.
STUCK_BUSY_PERCENT = 80
STUCK_CLOCK_SHARE = 0.5
STUCK_POWER_SHARE = 0.35
STUCK_POWER_W = 30.0


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process on the device: pid, its name, its device memory where known, and its kind."""

    pid: int
    name: str | None
    used_bytes: int | None
    kind: str = COMPUTE


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device as NVML describes it.

    ``processes`` is None when the driver will not list them; ``unified`` says that device memory
    is host memory, so NVML has no figure of its own for it.
    """

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
    uuid: str | None = None
    max_sm_clock_mhz: int | None = None
    mem_clock_mhz: int | None = None
    power_limit_w: float | None = None
    performance_state: int | None = None
    persistence: bool | None = None
    ecc: bool | None = None
    mig: bool | None = None
    unified: bool = False

    @property
    def throttles(self) -> tuple[str, ...]:
        """Why the clocks are lower than asked for, in words."""
        bits = self.throttle_bits or 0
        return tuple(word for bit, word in THROTTLES.items() if bits & bit)


def _try(probe: Callable[[], _T]) -> _T | None:
    """The probe's answer; None when the driver, the platform or a permission is missing."""
    try:
        return probe()
    except Exception:  # NVML raises a class per error code
        return None


@contextlib.contextmanager
def driver() -> Iterator[Any | None]:
    """NVML, initialised while the block is open; None without a driver."""
    nvml: Any = None
    with contextlib.suppress(ImportError):
        nvml = importlib.import_module("pynvml")
    if nvml is None or _try(lambda: (nvml.nvmlInit(), True)) is None:
        yield None
        return
    try:
        yield nvml
    finally:
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()


def visible(uuids: Sequence[str | None], asked: str | None) -> int | None:
    """The index of the first device that CUDA_VISIBLE_DEVICES (``asked``) leaves; None: none.

    Pure.  Indices count as NVML does; a uuid may be shortened, as CUDA allows; a MIG instance
    can be placed only where there is one GPU.
    """
    first = "0" if asked is None else asked.split(",")[0].strip()
    if first.isdigit():
        return int(first) if int(first) < len(uuids) else None
    if first.startswith("MIG-"):
        return 0 if len(uuids) == 1 else None
    matching = (i for i, uuid in enumerate(uuids) if first and (uuid or "").startswith(first))
    return next(matching, None)


def _asked() -> str | None:
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _uuid(nvml: Any, index: int) -> str | None:
    return _try(lambda: _text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index))))


def _uuids(nvml: Any) -> list[str | None]:
    count = _try(lambda: int(nvml.nvmlDeviceGetCount())) or 0
    return [_uuid(nvml, index) for index in range(count)]


def key() -> str:
    """The name of this box's device: the GPU's uuid, or ``cpu`` where no GPU may be used."""
    asked = _asked()
    if asked is not None and asked.startswith("MIG-"):
        return asked.split(",")[0].strip()
    with driver() as nvml:
        if nvml is None:
            return CPU
        uuids = _uuids(nvml)
    index = visible(uuids, asked)
    return CPU if index is None else uuids[index] or f"GPU-{index}"


def energy_mj() -> int | None:
    """Millijoules that this environment's GPU took since its driver was loaded; None: not told.

    A part of a GPU has no counter of its own.
    """
    asked = _asked()
    if asked is not None and asked.startswith("MIG-"):
        return None
    with driver() as nvml:
        index = None if nvml is None else visible(_uuids(nvml), asked)
        if nvml is None or index is None:
            return None
        return _try(
            lambda: int(
                nvml.nvmlDeviceGetTotalEnergyConsumption(nvml.nvmlDeviceGetHandleByIndex(index))
            )
        )


def mine(found: Sequence[Gpu]) -> Gpu | None:
    """The one of ``found`` that a run of this environment uses; None on a CPU box."""
    index = visible([gpu.uuid for gpu in found], _asked())
    return None if index is None else found[index]


def gpus() -> tuple[Gpu, ...]:
    """The devices that NVML shows; none when there is no driver."""
    with driver() as nvml:
        if nvml is None:
            return ()
        count = _try(lambda: int(nvml.nvmlDeviceGetCount())) or 0
        found = (_gpu(nvml, index) for index in range(count))
        return tuple(gpu for gpu in found if gpu is not None)


def _gpu(nvml: Any, index: int) -> Gpu | None:
    handle = _try(lambda: nvml.nvmlDeviceGetHandleByIndex(index))
    if handle is None:
        return None
    memory = _memory(nvml, handle)
    power = _try(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    limit = _try(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    busy = _try(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    return Gpu(
        index=index,
        name=_try(lambda: _text(nvml.nvmlDeviceGetName(handle))),
        driver=_try(lambda: _text(nvml.nvmlSystemGetDriverVersion())),
        mem_total_bytes=None if memory is None else memory[0],
        mem_used_bytes=None if memory is None else memory[1],
        sm_clock_mhz=_try(lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))),
        temperature_c=_try(
            lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        ),
        power_w=None if power is None else power / 1000.0,
        busy_percent=None if busy is None else int(busy.gpu),
        throttle_bits=_try(lambda: int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))),
        processes=_processes(nvml, handle),
        uuid=_try(lambda: _text(nvml.nvmlDeviceGetUUID(handle))),
        max_sm_clock_mhz=_try(
            lambda: int(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))
        ),
        mem_clock_mhz=_try(lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))),
        power_limit_w=None if limit is None else limit / 1000.0,
        performance_state=_try(lambda: int(nvml.nvmlDeviceGetPerformanceState(handle))),
        persistence=_try(lambda: bool(nvml.nvmlDeviceGetPersistenceMode(handle))),
        ecc=_try(lambda: bool(nvml.nvmlDeviceGetEccMode(handle)[0])),
        mig=_try(lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0])),
        unified=memory is None,
    )


def _memory(nvml: Any, handle: Any) -> tuple[int, int] | None:
    """Total and used bytes; the newer call leaves out what the driver keeps for itself."""
    figures = _try(
        lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    ) or _try(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    return _try(lambda: (int(figures.total), int(figures.used))) if figures else None


def _processes(nvml: Any, handle: Any) -> tuple[GpuProcess, ...] | None:
    """Everybody on the device, once each; None when no list can be had."""
    found: dict[int, GpuProcess] = {}
    answered = False
    for kind, name in _LISTS:
        running = _try(lambda name=name: getattr(nvml, name)(handle))  # type: ignore[misc]
        if running is None:
            continue
        answered = True
        for one in running:
            used = one.usedGpuMemory
            found.setdefault(
                int(one.pid),
                GpuProcess(int(one.pid), _name(int(one.pid)),
                           used if isinstance(used, int) else None, kind),
            )  # fmt: skip
    return tuple(found.values()) if answered else None


def _name(pid: int) -> str | None:
    return _try(lambda: Path(f"/proc/{pid}/comm").read_text(errors="replace").strip())


def stuck(gpu: Gpu) -> str | None:
    """Why this GPU is not worth measuring on: busy, and yet slow and cold.  Pure.

    Utilisation alone looks healthy there; the product of clock and power does not.
    """
    clock, top, power = gpu.sm_clock_mhz, gpu.max_sm_clock_mhz, gpu.power_w
    if gpu.busy_percent is None or clock is None or not top or power is None:
        return None
    cold = power <= STUCK_POWER_W
    if gpu.power_limit_w:
        cold = power <= STUCK_POWER_SHARE * gpu.power_limit_w
    slow = clock <= STUCK_CLOCK_SHARE * top
    if gpu.busy_percent < STUCK_BUSY_PERCENT or not slow or not cold:
        return None
    state = "" if gpu.performance_state is None else f"in P{gpu.performance_state}, "
    return (
        f"GPU {gpu.index} is stuck at low power: {state}{gpu.busy_percent} % busy at {clock} of "
        f"{top} MHz and {power:.0f} W."
    )
