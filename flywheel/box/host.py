"""What the box looks like right now: memory, disk, load, processor and devices.

The only module that touches psutil.  A probe that fails is a missing figure, never an error.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil as _psutil

from flywheel.box import cpu
from flywheel.box.cpu import Cpu, cores
from flywheel.box.device import Gpu, GpuProcess, gpus

_T = TypeVar("_T")
# An untyped package, called for what it answers and never trusted for its shape.
psutil: Any = _psutil

DISK_FLOOR_BYTES = 256 << 20
LOAD_VARIABLE = "FLYWHEEL_MAX_LOAD"
_PROC, _CGROUP = Path("/proc"), Path("/sys/fs/cgroup")
# A limit above this is no limit: version 1 writes a huge number for none.
_UNLIMITED_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class Host:
    """One look at the box.

    ``mem_available_bytes`` is the kernel's estimate, or what the cgroup leaves if that is less;
    ``mem_reclaimable_bytes`` is page cache that could be dropped; ``pressure`` is the share of
    the last ten seconds that some task waited for cpu, memory or io, in percent.
    """

    load_1m: float | None
    cores: int | None
    mem_total_bytes: int | None
    mem_available_bytes: int | None
    disk_free_bytes: int | None
    gpus: tuple[Gpu, ...]
    mem_reclaimable_bytes: int | None = None
    cgroup_limit_bytes: int | None = None
    swap_total_bytes: int | None = None
    pressure: dict[str, float] = field(default_factory=dict)
    cpu: Cpu = field(default_factory=Cpu)

    def to_json(self) -> dict[str, Any]:
        """The look as a JSON object."""
        return asdict(self)


def _try(probe: Callable[[], _T]) -> _T | None:
    """The probe's answer; None when the platform or a permission is missing."""
    try:
        return probe()
    except Exception:  # psutil and the OS raise their own
        return None


def probe(folder: Path) -> Host:
    """One look at the box; ``folder`` says whose disk is meant."""
    memory = _try(psutil.virtual_memory)
    swap = _try(psutil.swap_memory)
    limit = cgroup_limit(_CGROUP, _PROC)
    available = None if memory is None else int(memory.available)
    if limit is not None and available is not None:
        available = max(0, min(available, limit[0] - limit[1]))
    return Host(
        load_1m=_try(lambda: os.getloadavg()[0]),
        cores=cores(),
        mem_total_bytes=None if memory is None else int(memory.total),
        mem_available_bytes=available,
        disk_free_bytes=_try(lambda: shutil.disk_usage(folder).free),
        gpus=gpus(),
        mem_reclaimable_bytes=_try(lambda: _reclaimable(memory)),
        cgroup_limit_bytes=None if limit is None else limit[0],
        swap_total_bytes=None if swap is None else int(swap.total),
        pressure=pressure(_PROC),
        cpu=cpu.state(),
    )


def _reclaimable(memory: Any) -> int:
    """Free memory and page cache; what is shared counts as cache but cannot be dropped."""
    return int(memory.free + memory.cached - memory.shared)


def cgroup_limit(root: Path, proc: Path) -> tuple[int, int] | None:
    """The tightest memory limit on this process and what is used under it, in bytes.

    Page cache that the kernel would drop by itself is not counted as used.
    """
    found = []
    for folder, limit_file, used_file, cache in _memory_groups(root, proc):
        limit = _try(lambda f=folder / limit_file: int(f.read_text()))  # type: ignore[misc]
        used = _try(lambda f=folder / used_file: int(f.read_text()))  # type: ignore[misc]
        if limit is not None and used is not None and limit < _UNLIMITED_BYTES:
            found.append((limit, max(0, used - _stat_of(folder / "memory.stat", cache))))
    return min(found, key=lambda one: one[0] - one[1], default=None)


def _memory_groups(root: Path, proc: Path) -> list[tuple[Path, str, str, str]]:
    """Folders of this process's memory cgroup and of those above it, with their file names."""
    text = _try(lambda: (proc / "self/cgroup").read_text()) or ""
    groups = []
    for line in text.splitlines():
        _, controllers, path = ([*line.split(":", 2), "", ""])[:3]
        if not controllers:
            top, names = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            top = root / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        inner = top / path.lstrip("/")
        # In a container the path is often the host's and does not exist: then the top stands.
        chain = [one for one in (inner, *inner.parents) if one == top or top in one.parents]
        groups += [(folder, *names) for folder in chain]
    return groups


def _stat_of(path: Path, name: str) -> int:
    rows = (line.split() for line in (_try(lambda: path.read_text()) or "").splitlines())
    return next((int(row[1]) for row in rows if len(row) == 2 and row[0] == name), 0)


def pressure(proc: Path) -> dict[str, float]:
    """Percent of the last ten seconds that some task was stalled, by resource; {} if unknown."""
    found = {}
    for name in ("cpu", "memory", "io"):
        text = _try(lambda n=name: (proc / "pressure" / n).read_text()) or ""  # type: ignore[misc]
        words = text.split()
        if len(words) > 1 and words[0] == "some":
            found[name] = float(words[1].partition("=")[2])
    return found


def load_limit(cores: int) -> float:
    """The one-minute load above which a run was not alone: the engine's own threads and as
    many again twice over, since an idle desktop or a CI runner never sits at zero.
    ``FLYWHEEL_MAX_LOAD`` overrides it on a box that is always busy."""
    asked = _try(lambda: float(os.environ[LOAD_VARIABLE]))
    return asked if asked is not None and asked > 0 else 3.0 * cores + 1.0


__all__ = [
    "DISK_FLOOR_BYTES",
    "Gpu",
    "GpuProcess",
    "Host",
    "cgroup_limit",
    "cores",
    "gpus",
    "load_limit",
    "pressure",
    "probe",
]
