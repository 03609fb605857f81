"""Everybody else on the device is named, or it is said that he cannot be."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

import pytest
from nvml import gpu, on_device

from flywheel.box import tenants
from flywheel.box.device import GpuProcess


@pytest.fixture(autouse=True)
def _one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_process_on_the_gpu_is_named_by_pid_name_and_user() -> None:
    busy = on_device(GpuProcess(os.getpid(), "python", 3 << 30), uuid="GPU-1")
    said = tenants.before_launch((busy,))
    assert said == (
        f"process {os.getpid()} (python, user {getpass.getuser()}) is using GPU 0 with 3.0 GiB."
    )
    assert tenants.during_run((busy,), (os.getpid(),)) is None
    nameless = on_device(GpuProcess(2**22, None, None))
    assert tenants.during_run((nameless,), ()) == (
        f"process {2**22} (an unknown program) is using GPU 0."
    )


def test_a_gpu_that_runs_do_not_use_is_not_ours_to_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = (on_device(GpuProcess(2**22, "x", 1), uuid="GPU-a"), gpu(index=1, uuid="GPU-b"))
    assert tenants.before_launch(gpus) is not None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b")
    assert tenants.before_launch(gpus) is None


def test_a_desktop_is_no_tenant_until_it_holds_real_memory() -> None:
    small = on_device(GpuProcess(2**22, "Xorg", 200 << 20, "graphics"))
    unknown = on_device(GpuProcess(2**22, "Xorg", None, "graphics"))
    large = on_device(GpuProcess(2**22, "game", 4 << 30, "graphics"))
    assert tenants.before_launch((small,)) is None
    assert tenants.before_launch((unknown,)) is None
    assert "game" in (tenants.before_launch((large,)) or "")


def test_memory_that_no_visible_process_holds_is_somebodys() -> None:
    for processes in (None, ()):
        seen = gpu(processes=processes, mem_used_bytes=int(3.1 * 2**30))
        assert tenants.before_launch((seen,)) == (
            "device memory of 3.1 GiB on GPU 0 is in use by a process that this container "
            "cannot see."
        )
        # While a run of ours is on the device, its own memory would read the same.
        assert tenants.during_run((seen,), ()) is None
    assert tenants.before_launch((gpu(processes=(), mem_used_bytes=300 << 20),)) is None
    assert tenants.before_launch((gpu(processes=None),)) is None  # unified: no figure at all


def fake_proc(root: Path, pid: int, words: list[str], **environment: str) -> None:
    folder = root / str(pid)
    folder.mkdir()
    (folder / "cmdline").write_bytes(b"\0".join(word.encode() for word in words) + b"\0")
    pairs = [f"{name}={value}".encode() for name, value in environment.items()]
    (folder / "environ").write_bytes(b"\0".join(pairs))


def test_another_engine_is_known_by_its_module_and_its_device(tmp_path: Path) -> None:
    mine = os.environ["FLYWHEEL_LEASE"]
    engine = ["/usr/bin/python3", "-X", "dev", "-m", "engine.measure", "--config", "c"]
    fake_proc(tmp_path, 10, engine, FLYWHEEL_LEASE=mine)
    fake_proc(tmp_path, 11, engine, FLYWHEEL_LEASE="/another/device.lock")
    fake_proc(tmp_path, 12, ["python3", "-m", "pytest", "-m", "engine"], FLYWHEEL_LEASE=mine)
    fake_proc(tmp_path, 13, ["bash", "-c", "python3 -m engine.server"], FLYWHEEL_LEASE=mine)
    fake_proc(tmp_path, 14, engine, FLYWHEEL_LEASE=mine, CUDA_VISIBLE_DEVICES="1")
    fake_proc(tmp_path, 15, ["python3", "-m", "engine.server"])
    fake_proc(tmp_path, 16, ["python3", "-m", "engine.bench"], FLYWHEEL_LEASE=mine)
    fake_proc(tmp_path, 17, ["python3", "-m", "engine.train", "all"], FLYWHEEL_LEASE=mine)
    (tmp_path / "15" / "environ").unlink()
    (tmp_path / "self").mkdir()
    assert [one.pid for one in tenants.engines(proc=tmp_path)] == [10, 15]
    assert [one.pid for one in tenants.engines((10,), tmp_path)] == [15]
    said = str(tenants.engines((10,), tmp_path)[0])
    assert said.startswith("process 15 (python -m engine.server")
    assert said.endswith("is using the device.")
