"""Wishes to stop: the most urgent is heard, whoever uttered it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pytest
from logs import honest, manifest, sealed
from test_parse import EXIT

from flywheel.box import host, identity
from flywheel.box.surroundings import Surroundings
from flywheel.loop import attend, stop
from flywheel.loop.attend import Wishes
from flywheel.run import ingest, launch


class FakeClock:
    """Time that stands still until it is moved."""

    def __init__(self) -> None:
        self.at_s = 100.0

    def monotonic_s(self) -> float:
        return self.at_s

    def now(self) -> datetime:
        return datetime(2026, 11, 28, tzinfo=UTC)

    def sleep(self, seconds: float) -> None:
        self.at_s += seconds


def test_wishes_rank_signal_stop_and_time(tmp_path: Path) -> None:
    clock, ledger = FakeClock(), tmp_path / "ledger.db"
    wishes = Wishes(ledger, clock, deadline_s=110.0)
    assert wishes.heard() is None
    assert wishes.left_s() == 10.0
    clock.sleep(11.0)
    assert wishes.heard(overtime_s=60.0) is None
    late = wishes.heard()
    assert late is not None
    assert (late.code, late.end_run) == ("budget_spent", True)
    stop.request(ledger, identity.current(), now=False)
    asked = wishes.heard()
    assert asked is not None
    assert not asked.end_run
    wishes.interrupt("Ctrl-C")
    pressed = wishes.heard()
    assert pressed is not None
    assert (pressed.code, pressed.reason, pressed.end_run) == ("interrupted", "Ctrl-C", True)
    assert Wishes(ledger, clock).left_s() is None


def test_an_unclaimed_run_is_taken_away(tmp_path: Path) -> None:
    done = attend.attend(tmp_path / "r1", manifest(), Wishes(tmp_path / "l.db", FakeClock()))
    assert done.state is not None
    assert done.state.phase == "unclaimed"
    got = ingest.ingest(tmp_path / "r1", manifest(), done.state)
    assert (got.end.outcome, got.end.code) == ("blocked", "never_started")


def test_a_foreign_process_contaminates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    me = identity.current()
    running = launch.RunState("running", me, me, None)
    gpu = host.Gpu(0, "g", None, None, None, None, None, None, None, None,
                   (host.GpuProcess(2**22, "miner", None),))  # fmt: skip
    around = Surroundings(every_s=0.0, gpus=lambda: (gpu,))
    monkeypatch.setattr(attend, "POLL_S", 0.05)
    looks = [running, running, running]

    def look(_: Path) -> launch.RunState:
        return looks.pop() if looks else launch.RunState("lost", None, None, None)

    monkeypatch.setattr(launch, "look", look)
    wishes = Wishes(tmp_path / "l.db", FakeClock())
    done = attend.attend(tmp_path, manifest(), wishes, around=around)
    assert done.contamination is not None
    assert "miner" in done.contamination
    assert done.contaminated_as == "foreign_process"
    assert done.surroundings["looks"] == 3


def test_a_log_that_changed_or_was_contaminated_is_void(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = manifest()
    (tmp_path / "run.log").write_text(sealed(honest()))
    state = launch.RunState("left", None, None, EXIT)
    assert ingest.ingest(tmp_path, one, state).end.code == "log_changed"
    digest = sha256((tmp_path / "run.log").read_bytes()).hexdigest()
    state = launch.RunState("left", None, None, replace(EXIT, log_sha256=digest))
    assert ingest.ingest(tmp_path, one, state).end.outcome == "ok"
    dirty = ingest.ingest(tmp_path, one, state, contamination="process 7 (miner)")
    assert (dirty.end.outcome, dirty.end.code) == ("void", "foreign_process")

    def crash(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(ingest, "parse", crash)
    assert ingest.ingest(tmp_path, one, state).end.code == "parser_failed"
    killed = replace(EXIT, status=None, signal=9)
    assert ingest.ingest(tmp_path, one, launch.RunState("left", None, None, killed)).record is None


def test_a_run_that_cannot_even_be_disowned_waits_for_the_disk_or_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Path) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(launch, "disown", full)
    wishes = Wishes(tmp_path / "l.db", FakeClock())
    wishes.interrupt("Ctrl-C")
    done = attend.attend(tmp_path / "r1", manifest(), wishes)
    assert done.state is None
    assert done.wish is not None
