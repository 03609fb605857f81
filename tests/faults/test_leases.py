"""The lease among real processes: two programs, two code bases, one device."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from harness import manifest_for, wait_for

from flywheel.box import device, identity, witness
from flywheel.box.lease import Lease, device_path
from flywheel.errors import LeaseBusy
from flywheel.guard.limits import limits
from flywheel.run import launch

ROOT = Path(__file__).parents[2]
ENGINE = """
import sys
from engine import lease
from engine.errors import DeviceBusy
try:
    with lease.held("engine.bench"):
        print("held", flush=True)
        sys.stdin.read()
except DeviceBusy as error:
    print(error, flush=True)
    sys.exit(3)
"""
LOOP = """
import sys
from flywheel.box.lease import Lease, device_path
with Lease.acquire(device_path(), "flywheel run"):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def started(code: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that has said its first line's worth; gone afterwards."""
    child = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def test_a_benchmark_is_refused_by_the_name_of_the_loop_and_the_loop_by_its() -> None:
    with Lease.acquire(device_path(), "flywheel run"), started(ENGINE) as bench:
        said = line(bench)
        assert f"process {os.getpid()} (flywheel run, since" in said
        assert bench.wait() == 3
    with started(ENGINE) as bench:
        assert line(bench) == "held"
        with pytest.raises(LeaseBusy, match=rf"process {bench.pid} \(engine.bench"):
            Lease.acquire(device_path(), "flywheel run")
        body = json.loads(device_path().read_text())
        assert body["holder"] == (identity.of(bench.pid) or identity.current()).to_json()
        bench.communicate("")
        assert bench.returncode == 0
    with Lease.acquire(device_path(), "flywheel run") as held:
        assert held.takeover is None


def test_a_benchmark_that_was_killed_is_proved_gone_by_the_loop() -> None:
    with started(ENGINE) as bench:
        assert line(bench) == "held"
        bench.send_signal(signal.SIGKILL)
        bench.wait()
        with Lease.acquire(device_path(), "flywheel run") as held:
            assert held.takeover is not None
            assert held.takeover.proof == f"no process {bench.pid} exists."


@pytest.mark.parametrize("code", [LOOP, ENGINE])
def test_deleting_the_lock_file_frees_the_device_for_nobody(code: str) -> None:
    with started(code) as holder:
        assert line(holder) == "held"
        device_path().unlink()
        with pytest.raises(LeaseBusy, match=rf"process {holder.pid} \(its lock file was deleted"):
            Lease.acquire(device_path(), "another")
        with started(ENGINE) as bench:
            assert "The device is held by" in line(bench)
            assert bench.wait() == 3
    with Lease.acquire(device_path(), "another"):
        pass


def test_a_supervisor_keeps_the_device_of_a_dead_daemon_even_without_the_file(
    tmp_path: Path,
) -> None:
    manifest = manifest_for(tmp_path, options=("--fault", "hang"))
    run_dir = tmp_path / "runs" / manifest.run_id
    launch.prepare(run_dir, manifest)
    held = Lease.acquire(device_path(), "flywheel run")
    held.tell("flywheel run, r1", run_dir)
    child = launch.start(run_dir, lease_fds=held.fds)
    try:
        wait_for(lambda: launch.look(run_dir).engine)
        held.release()
        with pytest.raises(LeaseBusy, match="the supervisor of"):
            Lease.acquire(device_path(), "another")
        device_path().unlink()
        with pytest.raises(LeaseBusy, match=f"process {child.pid} "):
            Lease.acquire(device_path(), "another")
    finally:
        launch.end(run_dir, 0.5)
        child.wait()
    with Lease.acquire(device_path(), "another") as taken:
        assert taken.previous is None  # the file with the text was deleted


def test_neither_engine_nor_guard_inherits_lock_or_witness(tmp_path: Path) -> None:
    guard = limits(8 << 30).to_json()
    manifest = manifest_for(tmp_path, options=("--fault", "hang"), guard=guard)
    run_dir = tmp_path / "runs" / manifest.run_id
    launch.prepare(run_dir, manifest)
    with Lease.acquire(device_path(), "flywheel run") as held:
        held.tell("flywheel run, r1", run_dir)
        child = launch.start(run_dir, lease_fds=held.fds)
        try:
            wait_for(lambda: len(family(child.pid)) >= 3)
            names = {str(device_path()), f"socket:[{witness.inode(device_path())}]"}

            def holders() -> set[int]:
                return {pid for pid in family(child.pid) if names & open_files(pid)}

            # A child that was forked this instant has not yet closed what it was born with.
            wait_for(lambda: holders() == {child.pid}, timeout_s=2.0)
        finally:
            launch.end(run_dir, 0.5)
            child.wait()


def family(supervisor: int) -> list[int]:
    """The supervisor and its children: the engine and the guard."""
    return [supervisor, *(child.pid for child in psutil.Process(supervisor).children())]


def open_files(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found


def test_the_engine_and_the_loop_find_the_same_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLYWHEEL_LEASE")
    code = "from engine import lease; print(lease.lock_path())"
    path = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ).stdout.strip()  # fmt: skip
    assert Path(path) == device_path()
    assert device.key() in path
    assert witness.name(device_path()) == Path(path).name
