"""Who else is on the box, with real processes: named, refused, and written down."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import manifest_for, wait_for
from nights import lever, night, opened, order, view

from flywheel.box import admission, tenants
from flywheel.box.clock import SystemClock
from flywheel.box.holder import Holder
from flywheel.box.identity import Identity, boot_id
from flywheel.box.lease import device_path, holder
from flywheel.box.surroundings import Surroundings
from flywheel.errors import Refused
from flywheel.files import dump
from flywheel.ledger import takeovers
from flywheel.loop.attend import Wishes, attend
from flywheel.run import launch
from flywheel.serve.address import Address
from flywheel.serve.server import Server, Setup


@contextlib.contextmanager
def engine_by_hand() -> Iterator[int]:
    """A process that runs ``python -m engine.measure`` as far as anybody can see."""
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)", "-m", "engine.measure"]
    )
    try:
        wait_for(lambda: [one for one in tenants.engines() if one.pid == child.pid])
        yield child.pid
    finally:
        child.kill()
        child.wait()


def test_a_second_engine_keeps_a_night_from_beginning(tmp_path: Path) -> None:
    asked = order(tmp_path)
    with engine_by_hand() as pid, opened(asked) as ledger:
        session = night(asked, ledger, [lever()], io.StringIO()).run()
    assert session.failed
    assert session.runs == 0
    assert session.reason.startswith(f"process {pid} (python -m engine.measure, user ")
    assert holder(device_path()) is None


def test_a_second_engine_that_comes_later_spoils_the_run(tmp_path: Path) -> None:
    manifest = manifest_for(tmp_path, options=("--fault", "hang"), timeout_s=1.5, grace_s=0.2)
    run_dir = tmp_path / "runs" / manifest.run_id
    launch.prepare(run_dir, manifest)
    child = launch.start(run_dir)
    wait_for(lambda: launch.look(run_dir).engine)
    with engine_by_hand() as pid:
        wishes = Wishes(tmp_path / "ledger.db", SystemClock())
        around = Surroundings(every_s=0.2)
        done = attend(run_dir, manifest, wishes, child=child, around=around)
    child.wait()
    assert done.contaminated_as == "foreign_process"
    assert f"process {pid} (python -m engine.measure" in (done.contamination or "")


def test_a_second_engine_is_named_to_who_would_serve(tmp_path: Path) -> None:
    with engine_by_hand() as pid, pytest.raises(Refused, match=f"process {pid} "):
        Server.start(
            lambda: tmp_path / "c.json", Setup(Address("127.0.0.1", 1), tmp_path / "serve.log")
        )
    assert holder(device_path()) is None


def test_a_run_keeps_what_the_box_was_like(tmp_path: Path) -> None:
    asked = order(tmp_path, "--sleep", "0.8", budget_runs=1)
    with opened(asked) as ledger:
        night(asked, ledger, [lever()], io.StringIO()).run()
        (run,) = [run for block in view(ledger).blocks() for run in block.runs]
    assert run.outcome == "ok"
    room, around = run.evidence["room"], run.evidence["surroundings"]
    assert room["need"]["basis"] == "the size of the checkpoint"
    assert room["host"]["mem_available_bytes"] > 0
    assert (room["waited_for"], room["dropped_cache"]) == ([], None)
    assert around["looks"] >= 1
    assert around["foreign_cores_limit"] > 0


def test_a_busy_host_is_waited_for_and_then_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYWHEEL_MAX_LOAD", "0.000001")
    monkeypatch.setattr(admission, "PATIENCE_S", 0.5)
    monkeypatch.setattr(admission.os, "getloadavg", lambda: (5.0, 5.0, 5.0))
    out = io.StringIO()
    asked = order(tmp_path)
    began = time.monotonic()
    with opened(asked) as ledger:
        session = night(asked, ledger, [lever()], out).run()
    assert time.monotonic() - began >= 0.5
    assert "waiting: the load of the last minute is 5.0" in out.getvalue()
    assert session.failed
    assert session.reason.startswith("the load of the last minute is 5.0, over 0.0")


def test_a_lease_taken_from_the_dead_is_in_the_ledger(tmp_path: Path) -> None:
    dead = Holder(Identity(2**22 - 1, 5, boot_id()), "flywheel run, r9", "2026-11-28T22:00:00Z")
    device_path().write_text(dump(dead.to_json()))
    out = io.StringIO()
    asked = order(tmp_path, budget_runs=1)
    with opened(asked) as ledger:
        night(asked, ledger, [lever()], out).run()
        night(asked, ledger, [lever()], out).run()
        with ledger.reading() as connection:
            (row,) = takeovers.takeovers(connection)
    assert row.proof == f"no process {2**22 - 1} exists."
    assert row.previous["purpose"] == "flywheel run, r9"
    assert (row.path, row.device) == (str(device_path()), "cpu")
    assert "was not given back by process" in out.getvalue()
