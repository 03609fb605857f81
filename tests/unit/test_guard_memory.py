"""What is available: the host, a container's limit, a GPU, and boxes that tell nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flywheel.guard.memory import (
    BlindError,
    DeviceMemory,
    HostMemory,
    available_of,
    file_pages_of,
    group_folders,
)

MEMINFO = "MemTotal:  1000 kB\nMemFree: 10 kB\nMemAvailable:   {} kB\nBuffers: 3 kB\n"


def group(folder: Path, limit: object, current: int, stat: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{current}\n")
    (folder / "memory.stat").write_text(stat)
    return folder


def host(tmp_path: Path, available_kb: int, membership: str = "") -> HostMemory:
    (tmp_path / "meminfo").write_text(MEMINFO.format(available_kb))
    return HostMemory(str(tmp_path / "meminfo"), str(tmp_path / "cgroup"), membership)


def test_the_real_box_has_memory() -> None:
    assert HostMemory("/proc/meminfo", "/sys/fs/cgroup").read() > 0


def test_available_memory_is_read_again_through_the_same_descriptor(tmp_path: Path) -> None:
    memory = host(tmp_path, 700)
    assert memory.read() == 700 * 1024
    (tmp_path / "meminfo").write_text(MEMINFO.format(5))
    assert memory.read() == 5 * 1024
    (tmp_path / "meminfo").write_text("")
    with pytest.raises(BlindError, match="no MemAvailable"):
        memory.read()


def test_a_box_without_the_figure_is_refused(tmp_path: Path) -> None:
    for text in (b"", b"MemFree: 3 kB", b"MemAvailable:", b"MemAvailable: lots"):
        with pytest.raises(BlindError):
            available_of(text)
    with pytest.raises(BlindError, match="cannot be read"):
        HostMemory(str(tmp_path / "nowhere"), "/")


def test_a_containers_limit_counts_when_it_is_tighter_than_the_host(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    stat = "anon 5\nactive_file 4096\ninactive_file 4096\nfile 9\n"
    group(root / "a" / "b", 1_000_000, 900_000, stat)
    group(root / "a", "max", 900_000, stat)
    memory = host(tmp_path, 10_000, "1:name=systemd:/x\n0::/a/b\n")
    assert memory.limits_seen == 2
    assert memory.total_bytes() == 1_000_000
    assert memory.read() == 100_000 + 8192
    # A tighter limit further up counts as well; one that is overdrawn leaves nothing.
    group(root / "a", 880_000, 900_000, stat)
    assert memory.read() == 0
    group(root / "a", "max", 1)
    group(root / "a" / "b", 10**12, 1)
    assert memory.read() == 10_000 * 1024
    assert memory.total_bytes() == 1000 * 1024


def test_a_cgroup_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    root = group(tmp_path / "cgroup", "10", 5)
    (root / "memory.current").write_text("garbage")
    assert host(tmp_path, 700, "0::/\n").read() == 700 * 1024
    (root / "memory.stat").unlink()
    assert host(tmp_path, 700, "0::/\n").limits_seen == 0


def test_the_groups_of_a_process_reach_up_to_the_root() -> None:
    root = Path("/sys/fs/cgroup")
    assert group_folders("0::/a/b\n", root) == (root / "a/b", root / "a", root)
    assert group_folders("0::/\n", root) == (root,)
    assert group_folders("0::/../../x\n", root) == (root,)
    assert group_folders("4:memory:/x\n", root) == ()
    assert file_pages_of(b"inactive_file 7\nactive_file x\n") == 7


class Nvml:
    """A driver with one device."""

    def __init__(self, name: str = "NVIDIA H200", total: int = 100, free: int = 60) -> None:
        self.name, self.total, self.free, self.fails = name, total, free, False

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid != "GPU-1":
            raise RuntimeError("Not Found")
        return uuid

    def nvmlDeviceGetName(self, _: str) -> str:  # noqa: N802
        return self.name

    def nvmlDeviceGetMemoryInfo(self, _: str) -> Any:  # noqa: N802
        if self.fails:
            raise RuntimeError("Not Supported")
        return SimpleNamespace(total=self.total, free=self.free)


def test_a_gpu_with_memory_of_its_own_counts() -> None:
    driver = Nvml()
    memory = DeviceMemory("GPU-1", driver)
    assert (memory.total_bytes, memory.read(), memory.why_not) == (100, 60, None)
    driver.fails = True
    assert memory.read() is None


def test_a_gpu_that_shares_the_hosts_memory_or_tells_nothing_is_left_to_the_host() -> None:
    silent = Nvml()
    silent.fails = True
    for driver, uuid in (
        (Nvml("NVIDIA Thor", 128, 3), "GPU-1"),
        (Nvml("NVIDIA GB10", 128, 3), "GPU-1"),
        (Nvml("new", 0, 0), "GPU-1"),
        (silent, "GPU-1"),
        (Nvml(), "GPU-2"),
        (object(), "GPU-1"),
    ):
        memory = DeviceMemory(uuid, driver)
        assert memory.total_bytes is None
        assert memory.why_not
