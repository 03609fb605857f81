"""STOP is heard within two seconds, whatever the loop is waiting for."""

from __future__ import annotations

import io
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from boxes import Box
from harness import wait_for
from nights import lever, night, opened, order, view

from flywheel.box import identity
from flywheel.box.clock import Window
from flywheel.box.lease import Lease, device_path
from flywheel.ledger.store import Ledger
from flywheel.loop.night import Night
from flywheel.loop.order import Session
from flywheel.run import ingest, launch
from flywheel.statistics.campaign import Settings

LIMIT_S = 2.0
PATIENT = Settings(label="test", budget=8, calibration=2, canary_every=50, backoff_s=(60.0,))


class Stopped:
    """A night in a thread, told to stop once it says what it is waiting for."""

    def __init__(self, one: Night, root: Path) -> None:
        self.one, self.root = one, root
        self.output = io.StringIO()
        self.session: Session | None = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.session = self.one.run()
        except BaseException as error:
            self.error = error

    def stop_when(self, waiting: Any, text: str = "") -> float:
        """Seconds from STOP to the end."""
        self.thread.start()
        wait_for(waiting)
        began = time.monotonic()
        (self.root / "STOP").write_text(text)
        self.thread.join(30.0)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error
        return time.monotonic() - began


def runs_of(root: Path) -> list[launch.RunState]:
    return [launch.look(path) for path in (root / "runs").glob("*")]


@pytest.fixture(autouse=True)
def _no_orphans(tmp_path: Path) -> Iterator[None]:
    yield
    for state in runs_of(tmp_path):
        for one in (state.supervisor, state.engine):
            if one is not None:
                identity.end_group(one, 0.1)


def stopped(asked: Any, ledger: Ledger, output: io.StringIO | None = None) -> Stopped:
    one = night(asked, ledger, [lever()], output or io.StringIO())
    return Stopped(one, asked.ledger.parent)


def test_while_the_window_is_shut(tmp_path: Path) -> None:
    asked = order(tmp_path, window=Window.parse("00:00-00:01"))
    with opened(asked) as ledger:
        told = stopped(asked, ledger)
        if asked.window.contains(told.one.clock.now()):  # pragma: no cover
            pytest.skip("it is just past midnight")
        assert told.stop_when(lambda: "window" in told.one.doing) < LIMIT_S
        assert view(ledger).blocks() == ()


def test_while_the_box_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_MAX_LOAD", "0.000001")
    asked = order(tmp_path)
    with opened(asked) as ledger:
        told = stopped(asked, ledger)
        assert told.stop_when(lambda: "load of the last minute" in told.one.doing) < LIMIT_S
        assert view(ledger).blocks() == ()


def test_in_the_pause_before_the_next_attempt(tmp_path: Path) -> None:
    asked = order(tmp_path, "--fault", "sigkill", settings=PATIENT)
    with opened(asked) as ledger:
        told = stopped(asked, ledger)
        assert told.stop_when(lambda: "pause" in told.one.doing) < LIMIT_S
        assert len(view(ledger).blocks()) == 1


def test_while_a_run_of_this_ledger_lets_go_of_the_device(tmp_path: Path) -> None:
    asked = order(tmp_path)
    with opened(asked) as ledger, Lease.acquire(device_path(), "flywheel run") as lease:
        lease.tell("flywheel run, r0", tmp_path / "runs" / "r0")
        told = stopped(asked, ledger)
        assert told.stop_when(lambda: told.thread.is_alive()) < LIMIT_S
        assert told.session is not None
        assert "STOP" in told.session.reason


def test_while_another_process_holds_the_ledger(tmp_path: Path) -> None:
    asked = order(tmp_path, "--sleep", "1")
    with opened(asked) as ledger:
        told = stopped(asked, ledger)

        def lock() -> bool:
            if not any(state.phase == "left" for state in runs_of(tmp_path)):
                return False
            time.sleep(0.5)
            return True

        with closing(sqlite3.connect(asked.ledger, timeout=10, isolation_level=None)) as other:
            told.thread.start()
            wait_for(lambda: any(s.phase == "running" for s in runs_of(tmp_path)))
            other.execute("BEGIN EXCLUSIVE")
            wait_for(lock)
            began = time.monotonic()
            (tmp_path / "STOP").touch()
            told.thread.join(30.0)
            took_s = time.monotonic() - began
        assert told.error is None
        assert told.session is not None
        assert "another process held the ledger" in told.session.reason
        assert took_s < LIMIT_S
        # Nothing is lost: the next night enters the run.
        (tmp_path / "STOP").unlink()
        night(order(tmp_path, budget_runs=1), ledger, [lever()], io.StringIO()).run()
        assert [r.outcome for b in view(ledger).blocks() for r in b.runs] == ["ok", "ok"]


def test_while_a_large_log_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, enough = threading.Event(), threading.Event()
    really = ingest.ingest

    def slowly(*args: Any, **more: Any) -> ingest.Ingested:
        reading.set()
        enough.wait(20.0)
        return really(*args, **more)

    monkeypatch.setattr(ingest, "ingest", slowly)
    asked = order(tmp_path)
    with opened(asked) as ledger:
        told = stopped(asked, ledger)
        assert told.stop_when(reading.is_set) < LIMIT_S
        enough.set()
        monkeypatch.setattr(ingest, "ingest", really)
        assert told.session is not None
        assert "the next flywheel run enters run" in told.session.reason
        (tmp_path / "STOP").unlink()
        night(order(tmp_path, budget_runs=1), ledger, [lever()], io.StringIO()).run()
        assert [r.outcome for b in view(ledger).blocks() for r in b.runs] == ["ok", "ok"]


def test_while_a_run_is_under_way_it_is_left_to_its_supervisor(tmp_path: Path) -> None:
    asked = order(tmp_path, "--sleep", "30")
    with opened(asked) as ledger:
        told = stopped(asked, ledger)
        running = lambda: any(s.phase == "running" and s.engine for s in runs_of(tmp_path))  # noqa: E731
        assert told.stop_when(running) < LIMIT_S
        assert told.session is not None
        assert "goes on under its supervisor" in told.session.reason
    assert running()


def test_stop_now_ends_even_an_engine_that_is_deaf(tmp_path: Path) -> None:
    asked = order(tmp_path, "--fault", "deaf")
    with opened(asked) as ledger:
        told = stopped(asked, ledger)

        def deaf() -> bool:
            logs = (tmp_path / "runs").glob("*/run.log")
            return any("@" in path.read_text(errors="replace") for path in logs)

        assert told.stop_when(deaf, "now") < LIMIT_S + 1.0
        run = view(ledger).blocks()[0].runs[0]
    assert (run.outcome, run.code) == ("blocked", "interrupted")
    assert not any(s.engine and identity.group_members(s.engine) for s in runs_of(tmp_path))


def test_before_a_supervisor_has_claimed_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = [sys.executable, "-c", "import time; time.sleep(20)"]
    started: list[subprocess.Popen[bytes]] = []

    def start(*_: object, **__: object) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(slow))
        return started[-1]

    monkeypatch.setattr(launch, "start", start)
    asked = order(tmp_path)
    try:
        with opened(asked) as ledger:
            told = stopped(asked, ledger)
            assert told.stop_when(lambda: bool(started), "now") < LIMIT_S + 1.0
            run = view(ledger).blocks()[0].runs[0]
        assert (run.outcome, run.code) == ("blocked", "never_started")
    finally:
        for child in started:
            child.kill()
            child.wait()


def test_a_signal_ends_the_process_in_time(box: Box) -> None:
    daemon = box.daemon(engine=("--sleep", "30"))
    box.running()
    began = time.monotonic()
    daemon.send_signal(signal.SIGTERM)
    daemon.wait(20.0)
    # A second more for the report, and for Python to leave.
    assert time.monotonic() - began < LIMIT_S + 1.0
