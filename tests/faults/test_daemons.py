"""The daemon as a process: killed, stopped, interrupted, doubled; no run is lost or doubled."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import checkpoint, fake_command, wait_for

from flywheel import cli, identity, launch
from flywheel.lease import Lease, device_path, holder
from flywheel.ledger import views
from flywheel.ledger.store import Ledger
from flywheel.selftest.engine.witness import told
from flywheel.serve import Address, health

SUITE = {
    "name": "fake",
    "prompts": [
        {"id": "code-0", "category": "code"},
        {"id": "prose-0", "category": "prose"},
        {"id": "code-1", "category": "code"},
    ],
}


class Box:
    """A folder with a ledger, and flywheel processes in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.started: list[subprocess.Popen[str]] = []
        checkpoint(root / "checkpoint")
        (root / "suite.json").write_text(json.dumps(SUITE))

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "flywheel", *words, "--ledger", str(self.root / "ledger.db")]

    def environment(self, *options: str) -> dict[str, str]:
        engine = fake_command("--witness", str(self.root / "witness"), *options)
        return {**os.environ, "FLYWHEEL_ENGINE": shlex.join(engine)}

    def run_words(self, *more: str) -> tuple[str, ...]:
        return (
            "run", "--quick", "--checkpoint", str(self.root / "checkpoint"),
            "--suite", str(self.root / "suite.json"), *more,
        )  # fmt: skip

    def daemon(self, *more: str, engine: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            self.command(*self.run_words(*more)),
            cwd=self.root,
            env=self.environment(*engine),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(child)
        return child

    def say(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """A command to its end; in this process, which has loaded everything already."""
        out, err = io.StringIO(), io.StringIO()
        before = dict(os.environ)
        os.environ.update({**self.environment(), **more})
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = cli.main([*words, "--ledger", str(self.root / "ledger.db")])
        finally:
            os.environ.clear()
            os.environ.update(before)
        return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())

    def states(self) -> list[launch.RunState]:
        return [launch.look(path) for path in sorted((self.root / "runs").glob("r*"))]

    def running(self) -> launch.RunState:
        def found() -> Any:
            return next(
                (s for s in self.states() if s.phase == "running" and s.engine is not None), None
            )

        state = wait_for(found)
        assert isinstance(state, launch.RunState)
        return state

    def launches(self) -> int:
        return sum(line["what"] == "start" for line in told(self.root / "witness"))

    def rows(self) -> list[views.RunRow]:
        ledger = Ledger.open(self.root / "ledger.db", create=False)
        try:
            with ledger.reading() as connection:
                return [run for b in views.load(connection).blocks() for run in b.runs]
        finally:
            ledger.close()


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    made = Box(tmp_path)
    yield made
    for child in made.started:
        if child.poll() is None:
            child.kill()
        child.communicate()
    for state in made.states():
        for one in (state.supervisor, state.engine):
            if one is not None:
                identity.end_group(one, 0.1)


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
    assert box.say("ledger", "check").returncode == 0


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
        wait_for(lambda: health(Address("127.0.0.1", 38520)) is not None)
        taken = serve()
        assert taken.returncode == 3
        assert "already answers" in taken.stderr
    finally:
        squatter.kill()
        squatter.wait()
    assert holder(device_path()) is None
