"""One holder at a time, named; death frees the lock and a helper cannot keep it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flywheel import lease
from flywheel.errors import LeaseBusy
from flywheel.lease import Holder, Lease


def test_a_held_lease_is_refused_by_name_and_free_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "device.lock"
    assert lease.holder(path) is None
    with Lease.acquire(path, "measuring") as held:
        assert held.previous is None
        held.tell("measuring r1", tmp_path / "runs" / "r1")
        with pytest.raises(LeaseBusy, match=rf"process {os.getpid()} \(measuring r1") as refused:
            Lease.acquire(path, "another")
        assert refused.value.exit_code == 3
        told = lease.describe(path)
        assert told["held"]
        assert told["holder_alive"]
        assert told["run_dir"].endswith("r1")
    assert lease.holder(path) is None
    assert lease.describe(path) == {"path": str(path), "held": False}
    with Lease.acquire(path, "another") as held:
        assert held.previous is not None
        assert held.previous.purpose == "measuring r1"
        held.release()
        held.release()


def test_the_lock_dies_with_its_holder_not_with_its_text(tmp_path: Path) -> None:
    path = tmp_path / "device.lock"
    code = f"""
import os
from pathlib import Path
from flywheel.lease import Lease
Lease.acquire(Path({str(path)!r}), "doomed")
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert "doomed" in path.read_text()
    assert lease.holder(path) is None
    with Lease.acquire(path, "next") as held:
        assert held.previous is not None
        assert held.previous.identity is not None


def test_a_helper_does_not_inherit_the_lease(tmp_path: Path) -> None:
    path = tmp_path / "device.lock"
    held = Lease.acquire(path, "measuring")
    assert not os.get_inheritable(held.fd)
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])
    try:
        held.release()
        assert lease.holder(path) is None
    finally:
        helper.kill()
        helper.wait()


def test_whoever_is_handed_the_descriptor_holds_it_too(tmp_path: Path) -> None:
    path = tmp_path / "device.lock"
    held = Lease.acquire(path, "measuring")
    heir = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(30)"], pass_fds=(held.fd,)
    )
    try:
        held.release()
        assert lease.holder(path) is not None
    finally:
        heir.kill()
        heir.wait()
    assert lease.holder(path) is None


def test_a_lock_with_unreadable_text_is_held_by_somebody(tmp_path: Path) -> None:
    path = tmp_path / "device.lock"
    with Lease.acquire(path, "x"):
        path.write_text("garbage")
        held = lease.holder(path)
        assert held is not None
        assert str(held).startswith("an unknown process")
        with pytest.raises(LeaseBusy, match="an unknown process"):
            Lease.acquire(path, "y")
    assert Holder.from_json({}).purpose == "unknown"


def test_the_device_has_one_lock_for_the_box(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_LEASE", "/somewhere/lock")
    assert lease.device_path() == Path("/somewhere/lock")
    monkeypatch.delenv("FLYWHEEL_LEASE")
    assert lease.device_path().name == "flywheel-device0.lock"
    assert lease.daemon_path(Path("/x/ledger.db")) == Path("/x/ledger.db.daemon.lock")
