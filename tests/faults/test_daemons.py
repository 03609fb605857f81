"""The daemon as a process: killed, stopped, interrupted, doubled; no run is lost or doubled."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from boxes import Box
from harness import wait_for

from flywheel.box import identity
from flywheel.box.lease import Lease, device_path, holder
from flywheel.cli import app as cli, daemon as cli_daemon
from flywheel.ledger.store import Ledger
from flywheel.serve.address import Address, told


def test_a_killed_daemons_live_run_is_adopted_and_entered_once(box: Box) -> None:
    first = box.daemon("--budget-runs", "1", engine=("--sleep", "6"))
    state = box.running()
    first.kill()
    first.wait()
    assert identity.is_alive(state.engine), "the engine died with its daemon"
    # The supervisor keeps the device for the run.
    assert holder(device_path()) is not None
    second = box.daemon("--budget-runs", "1")
    out, err = second.communicate(timeout=60)
    assert second.returncode == 0, err
    assert "adopted, still running" in out
    assert box.launches() == 2
    assert [row.outcome for row in box.rows()] == ["ok", "ok"]


def test_a_run_that_finished_while_no_daemon_lived_is_entered_once(box: Box) -> None:
    first = box.daemon("--budget-runs", "1", engine=("--sleep", "2"))
    box.running()
    first.kill()
    first.wait()
    wait_for(lambda: all(s.phase == "left" for s in box.states()))
    done = box.say(*box.run_words("--budget-runs", "1"))
    assert done.returncode == 0, done.stderr
    assert box.launches() == 2
    assert [row.outcome for row in box.rows()] == ["ok", "ok"]


def test_ctrl_c_ends_the_run_prints_the_report_and_blames_nobody(box: Box) -> None:
    daemon = box.daemon(engine=("--sleep", "30"))
    state = box.running()
    daemon.send_signal(signal.SIGINT)
    out, err = daemon.communicate(timeout=30)
    assert daemon.returncode == 0, err
    assert "Traceback" not in err
    assert "Ctrl-C" in out
    assert "canaries" in out, "no report"
    assert not identity.group_members(state.engine)
    assert [(row.outcome, row.code) for row in box.rows()] == [("blocked", "interrupted")]
    assert holder(device_path()) is None
    assert box.say("ledger", "verify").returncode == 0


def test_stop_leaves_the_run_and_stop_now_ends_it(box: Box) -> None:
    daemon = box.daemon("--json", engine=("--sleep", "60"))
    state = box.running()
    told = json.loads(box.say("status", "--json").stdout)
    assert told["running"]
    assert told["daemon"]["alive"]
    assert told["device"]["held"]
    done = box.say("stop")
    assert done.returncode == 0, done.stderr
    out, _ = daemon.communicate(timeout=20)
    assert daemon.returncode == 0
    assert "goes on under its supervisor" in json.loads(out)["session"]["reason"]
    assert identity.is_alive(state.engine)
    assert "open run" in box.say("status").stdout

    ended = json.loads(box.say("stop", "--now", "--json").stdout)
    assert len(ended["ended"]) == 1
    assert not identity.group_members(state.engine)
    assert not (box.root / "STOP").exists()
    again = box.say(*box.run_words("--budget-runs", "1"))
    assert again.returncode == 0, again.stderr
    assert [row.outcome for row in box.rows()] == ["blocked", "ok"]


def test_stop_now_ends_the_run_through_its_daemon(box: Box) -> None:
    daemon = box.daemon(engine=("--sleep", "60"))
    state = box.running()
    done = box.say("stop", "--now")
    assert done.returncode == 0, done.stderr
    daemon.communicate(timeout=20)
    assert daemon.returncode == 0
    assert not identity.group_members(state.engine)
    assert [row.outcome for row in box.rows()] == ["blocked"]
    assert box.say("stop").stdout == "nothing is running.\n"


def test_stop_now_ends_the_run_of_a_daemon_that_does_not_answer(
    box: Box, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli_daemon, "GONE_PATIENCE_S", 0.3)
    daemon = box.daemon(engine=("--sleep", "60"))
    state = box.running()
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        assert cli.main(["stop", "--now", "--ledger", str(box.root / "ledger.db")]) == 1
        said = capsys.readouterr().out
        assert f"process {daemon.pid} (flywheel run, " in said
        assert "has not finished yet; ended r00001-" in said
        assert not identity.group_members(state.engine)
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    daemon.communicate(timeout=20)
    assert [row.outcome for row in box.rows()] == ["blocked"]


def test_stop_now_leaves_the_run_of_another_ledger_in_the_same_folder(box: Box) -> None:
    daemon = box.daemon(engine=("--sleep", "60"))
    state = box.running()
    Ledger.open(box.root / "other.db").close()
    assert cli.main(["stop", "--now", "--ledger", str(box.root / "other.db")]) == 0
    assert identity.is_alive(state.engine)
    assert box.say("stop", "--now").returncode == 0
    daemon.communicate(timeout=20)
    assert not identity.group_members(state.engine)


def test_a_stop_file_made_by_hand_refuses_the_start_and_stays(box: Box) -> None:
    (box.root / "STOP").touch()
    done = box.say(*box.run_words())
    assert done.returncode == 3
    assert "STOP" in done.stderr
    assert (box.root / "STOP").exists()
    assert not (box.root / "ledger.db").exists()


def test_a_second_daemon_is_refused_by_name(box: Box) -> None:
    daemon = box.daemon(engine=("--sleep", "30"))
    box.running()
    done = box.say(*box.run_words())
    assert done.returncode == 3
    assert f"process {daemon.pid} (flywheel run" in done.stderr


def test_a_device_held_by_another_is_refused(box: Box) -> None:
    with Lease.acquire(device_path(), "a server"):
        done = box.say(*box.run_words("--json"))
    assert done.returncode == 3
    assert "a server" in json.loads(done.stdout)["error"]
    assert not (box.root / "witness").exists()


def test_the_daemon_idles_while_a_run_is_under_way(box: Box) -> None:
    daemon = box.daemon(engine=("--sleep", "30"))
    box.running()

    def cpu_s() -> float:
        fields = Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    wait_for(lambda: cpu_s() > 0)
    before = cpu_s()
    with pytest.raises(subprocess.TimeoutExpired):
        daemon.wait(5.0)
    # Two per cent of a core, and one clock tick for the rounding.
    assert cpu_s() - before <= 0.02 * 5.0 + 0.02


def test_the_server_is_started_proven_and_ended(box: Box) -> None:
    done = box.say(*box.run_words("--budget-runs", "1"))
    assert done.returncode == 0, done.stderr
    server = Path(__file__).with_name("fake_server.py")
    command = shlex.join([sys.executable, str(server)])
    environment = {**box.environment(), "FLYWHEEL_SERVER": command}
    serve = subprocess.Popen(
        box.command("serve", "--port", "38519", "--checkpoint", str(box.root / "checkpoint")),
        cwd=box.root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    box.started.append(serve)
    assert serve.stdout is not None
    assert "serving at http://127.0.0.1:38519" in serve.stdout.readline()
    held = holder(device_path())
    assert held is not None
    assert "flywheel serve" in held.purpose
    assert box.say(*box.run_words()).returncode == 3
    serve.send_signal(signal.SIGTERM)
    serve.communicate(timeout=20)
    assert serve.returncode == 0
    assert holder(device_path()) is None


def test_a_server_that_dies_or_a_port_that_is_taken_is_one_sentence(box: Box) -> None:
    assert box.say(*box.run_words("--budget-runs", "1")).returncode == 0
    server = Path(__file__).with_name("fake_server.py")

    def serve(*options: str) -> subprocess.CompletedProcess[str]:
        words = shlex.join([sys.executable, str(server), *options])
        return box.say("serve", "--port", "38520", FLYWHEEL_SERVER=words)

    dead = serve("--die")
    assert dead.returncode == 1
    assert "left with status 4 before it was ready" in dead.stderr
    squatter = subprocess.Popen(
        [sys.executable, str(server), "--config", "c", "--host", "127.0.0.1", "--port", "38520"]
    )
    try:
        wait_for(lambda: told(Address("127.0.0.1", 38520))[0])
        taken = serve()
        assert taken.returncode == 3
        assert "already answers" in taken.stderr
    finally:
        squatter.kill()
        squatter.wait()
    assert holder(device_path()) is None
