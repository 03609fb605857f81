"""`flywheel status`: quick, right, and of no consequence to anybody."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest
from records import NOW, World, drive, lever

from flywheel.box import identity
from flywheel.cli import app as cli, daemon as cli_daemon
from flywheel.cli.daemon import status_lines
from flywheel.display.panel import Scene
from flywheel.display.watch import scene_of
from flywheel.errors import LedgerError, UsageError
from flywheel.files import dump
from flywheel.ledger import halts, views
from flywheel.ledger.store import Ledger
from flywheel.loop import glance, planned
from flywheel.statistics.campaign import QUICK

FAST = {'{"threads":2}': -0.05}


def campaign(path: Path) -> Ledger:
    ledger = Ledger.open(path)
    planned.open_campaign(ledger, QUICK, start={"moe": "loop"}, box="box", now_utc=NOW)
    return ledger


def test_the_glance_agrees_with_the_whole_view(tmp_path: Path) -> None:
    ledger = campaign(tmp_path / "ledger.db")
    drive(ledger, [lever("fast"), lever("slow", {"moe": "gather"})], World(FAST))
    with ledger.reading() as connection:
        view = views.load(connection)
    ledger.close()
    told = glance.history(tmp_path / "ledger.db")
    assert view.campaign is not None
    budget = view.budget(view.campaign.id)
    assert told["campaign"]["tests"] == budget.tests > 0
    assert told["campaign"]["left"] == budget.left
    assert told["campaign"]["promotions"] == budget.promotions == 1
    assert told["campaign"]["ended"] is None
    assert told["finding"]["sentence"] == view.findings[-1].sentence
    assert told["open_runs"] == []
    assert told["halts"] == []


def test_a_standing_halt_is_told_with_what_to_do(tmp_path: Path) -> None:
    ledger = campaign(tmp_path / "ledger.db")
    halts.halt(ledger, "canary_promoted", "a canary won", None, NOW)
    told = glance.status(tmp_path / "ledger.db")
    assert told["halted"] == "a canary won"
    lines = status_lines({**told, "progress": None})
    assert any(line.startswith("halted: a canary won (canary_promoted") for line in lines)
    assert 'to go on: flywheel resume --why "what it was"' in lines
    halts.resume(ledger, "me: looked", NOW)
    ledger.close()
    assert glance.status(tmp_path / "ledger.db")["halts"] == []


def test_what_is_no_ledger_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no ledger"):
        glance.status(tmp_path / "nothing.db")
    (tmp_path / "text.db").write_text("hello, this is no database at all" * 100)
    with pytest.raises(LedgerError, match=r"text\.db cannot be read"):
        glance.status(tmp_path / "text.db")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.db"]


def test_a_running_daemon_is_described(tmp_path: Path) -> None:
    told = {
        "running": True, "pid": 7, "device": {"held": True, "purpose": "flywheel run, r1"},
        "daemon": {"doing": "lever: threads -> 2", "doing_since_utc": "2026-11-28T22:00:00Z",
                   "run": "r1", "runs": 1, "ok": 1, "time_left_s": 65.0, "budget_runs": 3,
                   "window": "22:00-07:00"},
        "progress": {"phase": "points", "done": 3, "total": 8},
        "stop": None, "halts": [], "halted": None, "open_runs": ["r1", "r0"], "finding": None,
        "campaign": None, "faults": {"count": 0, "last": None},
    }  # fmt: skip
    silent = {**told, "daemon": {**told["daemon"], "silent_s": 95.0}}  # type: ignore[dict-item]
    assert "no sign of life for 1 min 35 s" in status_lines(silent)
    assert status_lines(told) == [
        "running: lever: threads -> 2, since 2026-11-28T22:00:00Z (process 7)",
        "run: r1, points 3/8",
        "so far: 1 run, 1 good",
        "left: 1 min 05 s, 2 runs, in the window 22:00-07:00",
        "device: held, flywheel run, r1",
        "open run: r0",
    ]


def test_status_needs_neither_the_statistics_nor_sqlalchemy(tmp_path: Path) -> None:
    campaign(tmp_path / "ledger.db").close()
    script = (
        "import sys\n"
        "from flywheel.cli import app as cli\n"
        f"status = cli.main(['status', '--json', '--ledger', {str(tmp_path / 'ledger.db')!r}])\n"
        "slow = [name for name in ('scipy', 'numpy', 'sqlalchemy', 'apscheduler', 'pydantic') "
        "if name in sys.modules]\n"
        "sys.exit(f'loaded {slow}' if slow or status else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["running"] is False


def test_a_scene_survives_the_status_file(tmp_path: Path) -> None:
    scene = Scene(headline="null · block b1", lever="null", notes=("one", "two"), said=5)
    body = json.loads(dump({"scene": asdict(scene)}))
    assert scene_of(body) == scene
    assert scene_of({}) == Scene()
    assert scene_of({"scene": {"headline": "x", "from_a_newer_version": 1}}).headline == "x"


def test_a_status_file_is_believed_only_while_its_daemon_lives(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    assert glance.daemon(ledger) == {"alive": False, "silent_s": None}
    me = identity.current().to_json()
    glance.status_path(ledger).write_text(dump({"daemon": me}))
    assert glance.daemon(ledger)["alive"]
    glance.status_path(ledger).write_text(dump({"daemon": {**me, "start_ticks": 1}}))
    assert not glance.daemon(ledger)["alive"]


def test_a_plain_status_is_answered_alike_with_and_without_typer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.db"
    campaign(path).close()
    told = []
    for words in (["--ledger", str(path), "--json"], [f"--ledger={path}", "--json"]):
        assert cli.main(["status", *words]) == 0
        told.append(json.loads(capsys.readouterr().out))
    assert told[0] == told[1]
    monkeypatch.setenv("FLYWHEEL_LEDGER", str(path))
    assert cli.main(["status"]) == 0
    assert "campaign: quick" in capsys.readouterr().out
    for words in (["--ledger"], ["--ledger", "--json"], ["--frob"]):
        assert cli_daemon.at_once(["status", *words]) is None
        assert cli.main(["status", *words]) == 2
        capsys.readouterr()
    assert cli_daemon.at_once(["stop"]) is None


def test_status_judges_a_file_as_every_other_command_does(tmp_path: Path) -> None:
    foreign, newer, damaged, empty = (tmp_path / f"{name}.db" for name in "fnde")
    with closing(sqlite3.connect(foreign)) as raw:
        raw.execute("CREATE TABLE t (a)")
    campaign(newer).close()
    damaged.write_bytes(newer.read_bytes()[:20_000])
    with closing(sqlite3.connect(newer)) as raw:
        raw.execute("PRAGMA user_version = 99")
    empty.touch()
    for path in (foreign, newer, damaged):
        with pytest.raises(LedgerError) as by_status:
            glance.status(path)
        with pytest.raises(LedgerError) as by_report:
            Ledger.read(path)
        assert str(by_status.value) == str(by_report.value)
    assert glance.status(empty)["campaign"] is None


def test_what_becomes_of_a_run_that_nobody_watches_is_told(tmp_path: Path) -> None:
    campaign(tmp_path / "ledger.db").close()
    told = {**glance.status(tmp_path / "ledger.db"), "progress": None}
    told.update(open_runs=["r1", "r2"], phases={"r1": "running", "r2": "left"})
    assert [line for line in status_lines(told) if line.startswith("open run")] == [
        "open run: r1 (still running; the next flywheel run enters it)",
        "open run: r2 (over; the next flywheel run enters it)",
    ]
