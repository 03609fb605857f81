"""How much memory is available, read without spawning or opening anything in the loop.

Host: ``MemAvailable`` of ``/proc/meminfo``.  In a container with a memory limit (cgroup v2), the
least of that and of what each limit above the run still has room for: ``memory.max`` less
``memory.current`` plus the file pages that the kernel can drop, which is how ``MemAvailable``
itself counts.  Device: what NVML calls free on a GPU with memory of its own; a GPU that shares the
host's memory is watched through the host alone.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from pathlib import Path
from typing import Any

# The line is the third of the file; the rest need not be read.
_MEMINFO_BYTES = 512
_STAT_BYTES = 16384
_UNIFIED = ("thor", "orin", "tegra", "xavier", "gb10", "jetson")


class BlindError(Exception):
    """The memory cannot be read; the sentence says why."""


def available_of(text: bytes, name: bytes = b"MemAvailable:") -> int:
    """A line of meminfo in bytes; BlindError when the text holds none."""
    start = text.find(name)
    value = start + len(name)
    words = text[value : value + 48].split(None, 2) if start >= 0 else []
    if not words or not words[0].isdigit():
        raise BlindError(f"there is no {name.decode().rstrip(':')} to read.")
    return int(words[0]) * 1024


def file_pages_of(text: bytes) -> int:
    """Bytes of file pages in a cgroup's ``memory.stat``."""
    total = 0
    for line in text.split(b"\n"):
        name, _, value = line.partition(b" ")
        if name in (b"active_file", b"inactive_file") and value.isdigit():
            total += int(value)
    return total


class _Group:
    """One cgroup that has a limit, its files open."""

    def __init__(self, folder: Path) -> None:
        opened: list[int] = []
        try:
            for name in ("memory.max", "memory.current", "memory.stat"):
                opened.append(os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            for fd in opened:
                os.close(fd)
            raise
        self._max, self._current, self._stat = opened

    def close(self) -> None:
        """Close its files."""
        for fd in (self._max, self._current, self._stat):
            os.close(fd)

    def limit_bytes(self) -> int | None:
        """The limit itself, or None without one."""
        limit = os.pread(self._max, 32, 0).strip()
        return int(limit) if limit.isdigit() else None

    def room_bytes(self) -> int | None:
        """What fits under the limit, or None without one."""
        limit = self.limit_bytes()
        if limit is None:
            return None
        used = int(os.pread(self._current, 32, 0))
        return max(0, limit - used + file_pages_of(os.pread(self._stat, _STAT_BYTES, 0)))


def group_folders(membership: str, root: Path) -> tuple[Path, ...]:
    """The cgroup v2 folders from a process's own up to ``root``, by ``/proc/<pid>/cgroup``."""
    for line in membership.splitlines():
        if line.startswith("0::/"):
            own = root / line[4:].lstrip("/")
            # A path outside the namespace begins with ".."; its limits cannot be seen from here.
            if ".." in own.parts:
                return (root,)
            inside = [own, *own.parents]
            return tuple(inside[: inside.index(root) + 1])
    return ()


class HostMemory:
    """The memory of the host, or of the container that this process lives in."""

    def __init__(self, meminfo: str, cgroup: str, membership: str | None = None) -> None:
        try:
            self._fd = os.open(meminfo, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise BlindError(f"{meminfo} cannot be read: {error.strerror}.") from error
        self._groups: list[_Group] = []
        if membership is None:
            with contextlib.suppress(OSError):
                membership = Path("/proc/self/cgroup").read_text(encoding="utf-8")
        for folder in group_folders(membership or "", Path(cgroup)):
            with contextlib.suppress(OSError):
                self._groups.append(_Group(folder))
        self.read()

    def close(self) -> None:
        """Close every file; for whoever looks once."""
        os.close(self._fd)
        for group in self._groups:
            group.close()

    @property
    def limits_seen(self) -> int:
        """How many cgroups with files of their own stand above this process."""
        return len(self._groups)

    def total_bytes(self) -> int:
        """The memory of the box, or of its tightest limit: what ``limits`` wants to know."""
        total = available_of(os.pread(self._fd, _MEMINFO_BYTES, 0), b"MemTotal:")
        for group in self._groups:
            with contextlib.suppress(OSError):
                total = min(total, group.limit_bytes() or total)
        return total

    def read(self) -> int:
        """Available bytes now; BlindError when they cannot be read."""
        try:
            available = available_of(os.pread(self._fd, _MEMINFO_BYTES, 0))
        except OSError as error:
            raise BlindError(f"the memory cannot be read any more: {error.strerror}.") from error
        for group in self._groups:
            with contextlib.suppress(OSError, ValueError):
                room = group.room_bytes()
                if room is not None and room < available:
                    available = room
        return available


class DeviceMemory:
    """The memory of one GPU; ``total_bytes`` is None when it has none of its own to watch."""

    def __init__(self, uuid: str, nvml: Any = None) -> None:
        self.total_bytes: int | None = None
        self.why_not: str | None = None
        # NVML raises a class per error code, and an old library lacks functions: none may end us.
        try:
            self._nvml: Any = importlib.import_module("pynvml") if nvml is None else nvml
            self._nvml.nvmlInit()
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
            name = str(self._nvml.nvmlDeviceGetName(self._handle))
            memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
            total = int(memory.total)
        except Exception as error:
            self.why_not = f"the driver does not report its memory ({error})"
            return
        if total <= 0 or any(word in name.lower() for word in _UNIFIED):
            self.why_not = f"{name} shares the host's memory"
            return
        self.total_bytes = total

    def read(self) -> int | None:
        """Free bytes now; None when the driver does not say."""
        try:
            return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).free)
        except Exception:
            return None
