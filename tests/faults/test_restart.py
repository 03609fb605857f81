"""A daemon that comes back: adopts what lives, enters what ended, once; every gap is tried."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from boxes import Box
from harness import wait_for
from nights import lever, night, only_planned, opened, order, view

from flywheel.box import identity
from flywheel.box.lease import Lease, daemon_path, device_path
from flywheel.ledger.rows import RunRow
from flywheel.ledger.store import Ledger
from flywheel.loop import attend
from flywheel.run import launch
from flywheel.run.manifest import Manifest
from flywheel.selftest.engine.witness import told


def starts(root: Path) -> int:
    """How many engines were started."""
    return sum(line["what"] == "start" for line in told(root / "witness"))


def first_run(ledger: Ledger) -> RunRow:
    return view(ledger).blocks()[0].runs[0]


def supervisor(run_dir: Path, after_s: float, *fds: int) -> subprocess.Popen[bytes]:
    """A supervisor that is slow to get going, in a session of its own like a real one."""
    script = (
        f"import sys, time; time.sleep({after_s}); from pathlib import Path;"
        f"from flywheel.run.supervise import supervise; sys.exit(supervise(Path({str(run_dir)!r})))"
    )
    root = str(Path(launch.__file__).resolve().parents[2])
    return subprocess.Popen(
        [sys.executable, "-c", script], pass_fds=fds, start_new_session=True,
        env={**os.environ, "PYTHONPATH": root}, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def prepared(asked: Any, ledger: Ledger) -> tuple[Manifest, Path]:
    """A run as a daemon leaves it that is killed just before it starts the supervisor."""
    manifest = only_planned(asked, ledger)
    run_dir = asked.runs_dir / manifest.run_id
    launch.prepare(run_dir, manifest)
    return manifest, run_dir


def test_a_supervisor_still_on_its_way_is_waited_for_and_its_run_adopted(tmp_path: Path) -> None:
    asked = order(tmp_path, "--witness", str(tmp_path / "witness"), budget_runs=1)
    out = io.StringIO()
    with opened(asked) as ledger:
        _, run_dir = prepared(asked, ledger)
        lease = Lease.acquire(device_path(), "flywheel run")
        lease.tell("flywheel run", run_dir)
        child = supervisor(run_dir, 1.0, *lease.fds)
        lease.release()
        night(asked, ledger, [], out).run()
        assert first_run(ledger).outcome == "ok", out.getvalue()
        child.wait(10.0)
    # The adopted one and the one of this night's own budget.
    assert starts(tmp_path) == 2


def test_a_supervisor_that_comes_too_late_starts_no_engine(tmp_path: Path) -> None:
    asked = order(tmp_path, "--witness", str(tmp_path / "witness"), budget_runs=1)
    with opened(asked) as ledger:
        _, run_dir = prepared(asked, ledger)
        night(asked, ledger, [], io.StringIO()).run()
        assert (first_run(ledger).outcome, first_run(ledger).code) == ("blocked", "never_started")
        assert supervisor(run_dir, 0.0).wait(10.0) == 3
    assert starts(tmp_path) == 1
    assert not (run_dir / "engine.json").exists()


def test_a_row_without_a_run_directory_is_blocked_and_leaves_no_trace(tmp_path: Path) -> None:
    asked = order(tmp_path, budget_runs=1)
    with opened(asked) as ledger:
        manifest = only_planned(asked, ledger)
        night(asked, ledger, [], io.StringIO()).run()
        assert (first_run(ledger).outcome, first_run(ledger).code) == ("blocked", "never_started")
    assert not (tmp_path / "runs" / manifest.run_id).exists()


def test_the_best_is_written_as_soon_as_a_daemon_is_back(box: Box) -> None:
    assert box.say(*box.run_words("--budget-runs", "1")).returncode == 0
    best = box.root / "best.json"
    before = best.read_text()
    best.unlink()
    box.daemon("--budget-runs", "1", engine=("--sleep", "20"))
    box.running()
    assert best.read_text() == before


def test_of_daemons_that_race_for_a_ledger_one_works(box: Box) -> None:
    racers = [box.daemon("--budget-runs", "1", engine=("--sleep", "1")) for _ in range(2)]
    told = [racer.communicate(timeout=60) for racer in racers]
    assert sorted(racer.returncode for racer in racers) == [0, 3], told
    refused = [err for _, err in told if err]
    assert all("is held by process" in err for err in refused)
    assert box.launches() == 1
    assert [row.outcome for row in box.rows()] == ["ok"]


def test_a_ledger_has_one_lock_whatever_leads_to_it_and_even_without_its_file(box: Box) -> None:
    daemon = box.daemon(engine=("--sleep", "20"))
    box.running()
    elsewhere = box.root / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "ledger.db").symlink_to(box.root / "ledger.db")
    linked = box.say(*box.run_words(), ledger=elsewhere / "ledger.db")
    assert linked.returncode == 3, linked.stderr
    assert f"process {daemon.pid}" in linked.stderr
    assert list(elsewhere.iterdir()) == [elsewhere / "ledger.db"]
    daemon_path(box.root / "ledger.db").unlink()
    done = box.say(*box.run_words())
    assert done.returncode == 3, done.stdout
    assert f"process {daemon.pid}" in done.stderr
    assert box.launches() == 1


def test_a_supervisor_that_hangs_past_the_limit_is_ended_by_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attend, "OVERDUE_S", 0.5)
    asked = order(tmp_path, "--fault", "hang", timeout_s=2.0, budget_runs=1)
    engines: list[identity.Identity | None] = []

    def freeze() -> None:
        def there() -> launch.RunState | None:
            found = [launch.look(path) for path in (tmp_path / "runs").glob("*")]
            return next((s for s in found if s.engine is not None), None)

        state = wait_for(there)
        engines.append(state.engine)
        os.kill(state.supervisor.pid, signal.SIGSTOP)

    thread = threading.Thread(target=freeze)
    thread.start()
    began = time.monotonic()
    with opened(asked) as ledger:
        night(asked, ledger, [lever()], io.StringIO()).run()
        run = first_run(ledger)
    thread.join()
    assert (run.outcome, run.code) == ("killed", "supervisor_lost")
    assert time.monotonic() - began < 20.0
    assert engines[0] is not None
    assert not identity.group_members(engines[0])
