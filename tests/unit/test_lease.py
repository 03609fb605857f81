"""One holder at a time, named; death frees the lock and a helper cannot keep it."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from flywheel.box import identity, lease, witness
from flywheel.box.holder import Holder, proof_of_absence
from flywheel.box.identity import Identity
from flywheel.box.lease import Lease
from flywheel.errors import LeaseBusy, LeaseError
from flywheel.files import dump


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
from flywheel.box.lease import Lease
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
    monkeypatch.setattr(lease.device, "key", lambda: "GPU-12")
    assert lease.device_path().name == "flywheel-GPU-12.lock"
    assert witness.name(lease.device_path()) == "flywheel-GPU-12.lock"
    assert lease.daemon_path(Path("/x/ledger.db")) == Path("/x/ledger.db.daemon.lock")


def test_a_lease_given_back_is_no_takeover_and_an_abandoned_one_is_proved(tmp_path: Path) -> None:
    path = tmp_path / "device.lock"
    with Lease.acquire(path, "first") as first:
        assert first.takeover is None
    with Lease.acquire(path, "second") as second:
        assert second.takeover is None
        assert second.previous is not None
        assert second.previous.released_utc is not None
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    gone = identity.of(child.pid, zombie=True)
    child.wait()
    abandoned(path, gone)
    with Lease.acquire(path, "third") as third:
        assert third.takeover is not None
        assert third.takeover.proof == f"no process {child.pid} exists."
        assert third.takeover.to_json()["previous"]["purpose"] == "abandoned"


def abandoned(path: Path, who: Identity | None) -> None:
    path.write_text(dump(Holder(who, "abandoned", "2026-11-28T22:00:00Z").to_json()))


def test_absence_is_proved_by_identity(tmp_path: Path) -> None:
    me = identity.current()
    said = {
        "names no process": None,
        "earlier boot": replace(me, boot_id="another"),
        "another one now": replace(me, start_ticks=me.start_ticks - 1),
        "holds neither": me,
    }
    for words, who in said.items():
        assert words in proof_of_absence(Holder(who, "x", "y"))
    (tmp_path / "device.lock").write_text("garbage")
    with Lease.acquire(tmp_path / "device.lock", "x") as held:
        assert held.takeover is not None
        assert "names no process" in held.takeover.proof


def test_a_deleted_lock_file_frees_nothing(tmp_path: Path) -> None:
    path = tmp_path / "device.lock"
    with Lease.acquire(path, "measuring") as held:
        path.unlink()
        assert lease.describe(path)["holder"]["pid"] == os.getpid()
        with pytest.raises(LeaseBusy, match=rf"process {os.getpid()} \(its lock file was deleted"):
            Lease.acquire(path, "another")
        path.unlink()
        assert held.check()
        assert not held.check()
        with pytest.raises(LeaseBusy, match="measuring"):
            Lease.acquire(path, "another")
    assert lease.holder(path) is None


def test_a_lock_file_that_was_replaced_and_locked_ends_the_holder(tmp_path: Path) -> None:
    path = tmp_path / "device.lock"
    with Lease.acquire(path, "measuring") as held:
        path.unlink()
        with path.open("w") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            with pytest.raises(LeaseBusy, match="its place was taken"):
                held.tell("measuring r2")


def test_a_lock_that_cannot_be_opened_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LeaseError, match="FLYWHEEL_LEASE") as refused:
        Lease.acquire(tmp_path / "file" / "device.lock", "x")
    assert refused.value.exit_code == 1


def test_a_file_system_without_locks_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(LeaseError, match=r"refuses locks .No locks available.; let FLYWHEEL_LEASE"):
        Lease.acquire(tmp_path / "device.lock", "x")


def test_a_run_left_to_its_supervisor_is_named_by_its_folder(tmp_path: Path) -> None:
    left = Holder(identity.current(), "x", "t0", "/runs/r1", "t1")
    assert str(left).startswith("the supervisor of /runs/r1")
    assert Holder.from_json(left.to_json()) == left


def test_an_engine_that_the_last_run_left_behind_keeps_the_device(tmp_path: Path) -> None:
    path, run_dir = tmp_path / "device.lock", tmp_path / "runs" / "r1"
    run_dir.mkdir(parents=True)
    engine = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(30)"], process_group=0
    )
    who = identity.of(engine.pid)
    assert who is not None
    (run_dir / "engine.json").write_text(dump(who.to_json()))
    path.write_text(dump(Holder(who, "x", "y", str(run_dir)).to_json()))
    try:
        with pytest.raises(LeaseBusy, match=rf"engine process {engine.pid} of .*r1"):
            Lease.acquire(path, "another")
    finally:
        engine.kill()
        engine.wait()
    with Lease.acquire(path, "another") as held:
        assert held.takeover is not None
