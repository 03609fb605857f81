"""A daemon without a terminal: detached, watched from elsewhere, and its terminal gone."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess

import pytest
from boxes import Box
from harness import wait_for

from flywheel.box import identity
from flywheel.box.lease import daemon_path, holder


@pytest.fixture
def detached(box: Box) -> Box:
    """A box with a detached daemon that is in the middle of a run."""
    done = box.say("run", "--detach", "--json", *box.run_words()[1:],
                   FLYWHEEL_ENGINE=box.environment("--sleep", "4")["FLYWHEEL_ENGINE"])  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["ready"]
    box.detached.append(identity.of(told["pid"]))
    held = holder(daemon_path(box.root / "ledger.db"))
    assert held is not None, "it returned before the daemon held its lock"
    assert held.identity == box.detached[0]
    return box


def test_a_detached_daemon_lives_in_a_session_of_its_own_and_is_watched(detached: Box) -> None:
    box, daemon = detached, detached.detached[0]
    assert daemon is not None
    assert os.getsid(daemon.pid) == daemon.pid
    box.running()

    second = box.say("run", "--detach", *box.run_words()[1:])
    assert second.returncode == 3
    assert f"process {daemon.pid}" in second.stderr
    assert second.stderr.count("\n") == 1

    told = json.loads(box.say("status", "--json").stdout)
    assert (told["running"], told["pid"]) == (True, daemon.pid)
    assert told["daemon"]["run"] in told["open_runs"]
    assert "running: null: null" in box.say("status").stdout

    # Two watchers; one of them is interrupted, and the loop does not notice.
    watching = [
        subprocess.Popen(box.command("attach"), cwd=box.root, env=box.environment(),
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]  # fmt: skip
    box.started += watching
    assert watching[0].stdout is not None
    assert "null: null" in watching[0].stdout.readline()
    watching[0].send_signal(signal.SIGINT)
    assert "no longer watching" in watching[0].communicate(timeout=20)[0]
    assert watching[0].returncode == 0
    assert identity.is_alive(daemon)
    assert box.say("stop", "--now").returncode == 0
    said, _ = watching[1].communicate(timeout=20)
    assert watching[1].returncode == 0
    assert "Stopped: flywheel stop --now." in said
    log = (box.root / "ledger.db.daemon.log").read_text()
    assert "null: null" in log
    assert "canaries" in log, "no report at its end"
    assert box.say("attach").returncode == 3


def test_a_daemon_that_cannot_start_says_why_with_its_own_code(box: Box) -> None:
    (box.root / "STOP").touch()
    refused = box.say("run", "--detach", *box.run_words()[1:])
    assert refused.returncode == 3
    assert "STOP" in refused.stderr
    assert refused.stderr.count("\n") == 1
    (box.root / "STOP").unlink()
    wrong = box.say("run", "--detach", "--checkpoint", str(box.root))
    assert wrong.returncode == 2
    assert "is not a checkpoint" in wrong.stderr


def test_a_start_that_is_taken_back_leaves_no_loop(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        box.running()
        raise KeyboardInterrupt

    monkeypatch.setattr("flywheel.loop.detach._listen", interrupted)
    done = box.say("run", "--detach", *box.run_words()[1:],
                   FLYWHEEL_ENGINE=box.environment("--sleep", "60")["FLYWHEEL_ENGINE"])  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "flywheel: interrupted.\n"
    wait_for(lambda: holder(daemon_path(box.root / "ledger.db")) is None)
    assert [(row.outcome, row.code) for row in box.rows()] == [("blocked", "interrupted")]


def test_a_daemon_starts_from_a_shell_without_standard_streams(box: Box) -> None:
    words = box.command("run", "--detach", *box.run_words("--budget-runs", "1")[1:])
    script = 'exec "$@" <&- >&- 2>&-'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *words], cwd=box.root, env=box.environment("--sleep", "4"),
        check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0
    held = holder(daemon_path(box.root / "ledger.db"))
    assert held is not None, "it waited for the daemon's end"
    box.detached.append(held.identity)
    box.running()
    assert "null: null" in (box.root / "ledger.db.daemon.log").read_text()
    assert box.say("stop", "--now").returncode == 0


def test_a_watcher_of_a_killed_daemon_says_so(box: Box) -> None:
    daemon = box.daemon(engine=("--sleep", "20"))
    box.running()
    watching = subprocess.Popen(
        box.command("attach"), cwd=box.root, env=box.environment(),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    box.started.append(watching)
    assert watching.stdout is not None
    watching.stdout.readline()
    daemon.kill()
    daemon.wait()
    _, err = watching.communicate(timeout=20)
    assert watching.returncode == 1
    assert "left no word" in err
    assert "not running" in box.say("status").stdout


def test_a_terminal_that_closes_does_not_end_the_night(box: Box) -> None:
    master, slave = pty.openpty()
    # In a session whose terminal this is, so that its end is a hang-up as well as an error.
    daemon = subprocess.Popen(
        box.command(*box.run_words("--budget-runs", "1")),
        cwd=box.root, env={**box.environment("--sleep", "1"), "TERM": "xterm", "CI": ""},
        preexec_fn=lambda: os.login_tty(os.dup(slave)),
    )  # fmt: skip
    os.close(slave)
    try:
        box.running()
    finally:
        os.close(master)
    wait_for(lambda: daemon.poll() is not None, 40.0)
    assert daemon.returncode >= 0, "a signal killed it"
    assert [row.outcome for row in box.rows()] == ["ok"]


def test_a_reader_that_goes_away_does_not_end_the_night(box: Box) -> None:
    daemon = box.daemon("--budget-runs", "1", engine=("--sleep", "1"))
    box.running()
    assert daemon.stdout is not None
    assert daemon.stderr is not None
    daemon.stdout.close()
    daemon.stderr.close()
    wait_for(lambda: daemon.poll() is not None, 40.0)
    daemon.stdout = daemon.stderr = None
    assert daemon.returncode == 0
    assert [row.outcome for row in box.rows()] == ["ok"]


def test_files_that_cannot_be_written_cost_a_warning_and_no_run(box: Box) -> None:
    # A folder in its place refuses the file as a full disk would.
    for name in ("ledger.db.daemon.json", "best.json"):
        (box.root / name).mkdir()
        (box.root / name / "in the way").touch()
    done = box.say(*box.run_words("--budget-runs", "2"))
    assert done.returncode == 0, done.stderr
    for name in ("ledger.db.daemon.json", "best.json"):
        assert f"{name} could not be written" in done.stdout
    assert done.stdout.count("ledger.db.daemon.json could not be written") == 1
    assert [row.outcome for row in box.rows()] == ["ok", "ok"]
