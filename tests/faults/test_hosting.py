"""Days and nights of `flywheel serve`, with a clock that the test moves, on fake engines."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from boxes import Box
from harness import wait_for

from flywheel.box.clock import SystemClock, Window
from flywheel.box.lease import Lease, device_path, holder
from flywheel.errors import FlywheelError, LeaseBusy
from flywheel.ledger import faults
from flywheel.ledger.store import Ledger
from flywheel.serve import hosting, proof as proving
from flywheel.serve.address import Address, told
from flywheel.serve.chosen import Chosen
from flywheel.serve.hosting import RESTARTS, Asked, Host, Order
from flywheel.serve.proof import NotReproduced, Proof
from flywheel.serve.server import Server

FAKE = (sys.executable, str(Path(__file__).with_name("fake_server.py")))


class WallClock(SystemClock):
    """Real seconds, but the time of day is the test's."""

    def __init__(self) -> None:
        self.hour = 12

    def now(self) -> datetime:
        return datetime(2026, 11, 28, self.hour, tzinfo=UTC)


class Hosted:
    """A host in a thread, and what it said."""

    def __init__(self, box: Box, **fields: Any) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = Address("127.0.0.1", probe.getsockname()[1])
        self.clock, self.asked = WallClock(), Asked()
        self.said: list[str] = []
        self.days: list[tuple[int, Chosen]] = []
        self.failed: list[BaseException] = []
        body = {"command": FAKE, "checkpoint": box.root / "checkpoint", "drain_s": 1.0, **fields}
        order = Order(ledger=box.root / "ledger.db", address=self.address, **body)
        self.host = Host(
            order, (), clock=self.clock, asked=self.asked, say=self.said.append, serving=self.day
        )
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def day(self, server: Server, choice: Chosen, told: Mapping[str, Any], shown: str) -> None:
        assert told["status"] == "ok"
        assert shown.startswith("unproven")
        self.days.append((server.child.pid, choice))

    def run(self) -> None:
        try:
            self.host.run()
        except BaseException as error:
            self.failed.append(error)

    def wait_for_day(self, number: int) -> int:
        wait_for(lambda: len(self.days) >= number or self.failed, 60.0)
        assert not self.failed, self.failed
        return self.days[number - 1][0]

    def stop(self) -> None:
        self.asked.stop = True
        self.thread.join(60)
        assert not self.thread.is_alive()


@pytest.fixture
def measured(box: Box, monkeypatch: pytest.MonkeyPatch) -> Box:
    """A box whose ledger has one run in it, and an engine for those to come."""
    assert box.say(*box.run_words("--budget-runs", "1")).returncode == 0
    monkeypatch.setenv("FLYWHEEL_ENGINE", box.environment()["FLYWHEEL_ENGINE"])
    return box


def night_words(box: Box, *more: str) -> tuple[str, ...]:
    return ("--quick", "--suite", str(box.root / "suite.json"), *more)


def test_the_night_has_the_device_and_the_morning_serves_again(measured: Box) -> None:
    words = night_words(measured, "--budget-runs", "1")
    hosted = Hosted(measured, window=Window.parse("22:00-07:00"), run_arguments=words)
    try:
        first = hosted.wait_for_day(1)
        hosted.clock.hour = 23
        second = hosted.wait_for_day(2)
        assert second != first
        # Its window is open still, but this night has had its run.
        assert [row.outcome for row in measured.rows()] == ["ok", "ok"]
        assert "handing the device over until 07:00." in hosted.said
        assert any("flywheel run worked for" in line for line in hosted.said)
        held = holder(device_path())
        assert held is not None
        assert "flywheel serve" in held.purpose

        hosted.clock.hour = 12
        threading.Event().wait(1.0)
        hosted.clock.hour = 22
        hosted.wait_for_day(3)
        assert len(measured.rows()) == 3
    finally:
        hosted.stop()
    assert holder(device_path()) is None


def test_who_asks_at_night_is_told_when_to_come_back(
    measured: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = measured.environment("--sleep", "30")["FLYWHEEL_ENGINE"]
    monkeypatch.setenv("FLYWHEEL_ENGINE", engine)
    words = night_words(measured, "--budget-runs", "1")
    hosted = Hosted(measured, window=Window.parse("22:00-07:00"), run_arguments=words)
    try:
        hosted.wait_for_day(1)
        hosted.clock.hour = 23
        measured.running()
        url = f"{hosted.address.url}/v1/chat/completions"
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(url, data=b'{"model": "m"}'), timeout=5)
        with refused.value as answer:
            assert answer.code == 503
            assert answer.headers["Retry-After"] == str(8 * 3600)
            assert "until 07:00" in json.load(answer)["error"]["message"]
        assert told(hosted.address)[1]["status"] == "away"
    finally:
        hosted.stop()
    assert [(row.outcome, row.code) for row in measured.rows()][1:] == [("blocked", "interrupted")]
    assert holder(device_path()) is None


def test_a_night_that_is_refused_is_a_sentence_and_serving_goes_on(measured: Box) -> None:
    hosted = Hosted(
        measured, window=Window.parse("22:00-07:00"), run_arguments=("--only", "nothing-like-it")
    )
    try:
        hosted.wait_for_day(1)
        hosted.clock.hour = 23
        hosted.wait_for_day(2)
        assert any("no lever named nothing-like-it" in line for line in hosted.said)
    finally:
        hosted.stop()


def test_who_has_the_device_in_the_morning_is_waited_for(
    measured: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "REFUSED_S", 0.3)
    hosted = Hosted(
        measured, window=Window.parse("22:00-07:00"), run_arguments=("--only", "nothing-like-it")
    )
    try:
        hosted.wait_for_day(1)
        hosted.clock.hour = 23
        lease = wait_for(taken)
        wait_for(lambda: any("Waiting for that to pass" in line for line in hosted.said))
        assert len(hosted.days) == 1
        lease.release()
        hosted.wait_for_day(2)
    finally:
        hosted.stop()


def taken() -> Lease | None:
    """The device, if it is free."""
    try:
        return Lease.acquire(device_path(), "somebody else")
    except LeaseBusy:
        return None


def test_a_best_that_is_not_reproduced_leaves_the_one_before_in_place(
    measured: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = proving.prove

    def prove(ledger: Ledger, address: Address, told: Mapping[str, Any], headers: Any) -> Proof:
        if told["config"] == {"threads": 2}:
            raise NotReproduced("what is served is not what was measured.")
        return shown(ledger, address, told, headers)

    monkeypatch.setattr(proving, "prove", prove)
    hosted = Hosted(measured, file=pinned(measured, threads=1))
    try:
        first = hosted.wait_for_day(1)
        pinned(measured, threads=2)
        os.kill(first, signal.SIGKILL)
        hosted.wait_for_day(2)
        assert told(hosted.address)[1]["config"] == {"threads": 1}
        assert any("as before" in line for line in hosted.said)
        # A reload tries anew, and goes back as well.
        hosted.asked.reload = True
        wait_for(lambda: any("Still serving" in line for line in hosted.said))
        assert told(hosted.address)[1]["config"] == {"threads": 1}
    finally:
        hosted.stop()


def test_a_server_that_dies_is_started_again_but_not_for_ever(measured: Box) -> None:
    hosted = Hosted(measured)
    try:
        for number in range(1, RESTARTS + 2):
            os.kill(hosted.wait_for_day(number), signal.SIGKILL)
        hosted.thread.join(60)
        assert len(hosted.days) == RESTARTS + 1
        (error,) = hosted.failed
        assert isinstance(error, FlywheelError)
        assert "left with status -9" in str(error)
        assert sum("started again" in line for line in hosted.said) == RESTARTS
    finally:
        hosted.stop()
    ledger = Ledger.read(measured.root / "ledger.db")
    with ledger.reading() as connection:
        kept = faults.faults(connection)
    ledger.close()
    assert [row.fault.detail for row in kept] == ["killed by signal 9"] * (RESTARTS + 1)
    assert holder(device_path()) is None


def pinned(box: Box, **config: Any) -> Path:
    path = box.root / "mine.json"
    path.write_text(json.dumps({"config": config}))
    return path


def test_a_second_host_that_is_refused_leaves_the_first_ones_files_alone(measured: Box) -> None:
    hosted = Hosted(measured)
    try:
        hosted.wait_for_day(1)
        files = [measured.root / name for name in ("served.json", "about.json", "serve.log")]
        before = [path.read_bytes() for path in files]
        mine = pinned(measured, threads=2)
        for port in (hosted.address.port, 1 + hosted.address.port % 60000):
            second = measured.say("serve", "--port", str(port), "--config", str(mine))
            assert second.returncode == 3
            assert len(second.stderr.splitlines()) == 1
        assert [path.read_bytes() for path in files] == before
    finally:
        hosted.stop()


def test_a_reload_keeps_the_process_where_it_can(box: Box) -> None:
    hosted = Hosted(box, file=pinned(box, threads=1))
    try:
        pid = hosted.wait_for_day(1)
        hosted.asked.reload = True
        wait_for(lambda: any("nothing new" in line for line in hosted.said))
        pinned(box, threads=2)
        hosted.asked.reload = True
        wait_for(lambda: any("now serving" in line for line in hosted.said))
        assert told(hosted.address)[1]["config"] == {"threads": 2}
        assert [day[0] for day in hosted.days] == [pid]
    finally:
        hosted.stop()


def test_a_reload_that_needs_a_restart_is_one(box: Box) -> None:
    hosted = Hosted(box, file=pinned(box, threads=1), command=(*FAKE, "--stubborn"))
    try:
        first = hosted.wait_for_day(1)
        pinned(box, dtype="bfloat16")
        hosted.asked.reload = True
        assert hosted.wait_for_day(2) != first
        assert told(hosted.address)[1]["config"] == {"dtype": "bfloat16"}
        assert any("Another dtype needs a restart" in line for line in hosted.said)
    finally:
        hosted.stop()


def test_hup_reaches_the_command(box: Box) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve = subprocess.Popen(
        box.command("serve", "--port", str(port), "--config", str(pinned(box, threads=1)),
                    "--checkpoint", str(box.root / "checkpoint")),
        cwd=box.root, env={**os.environ, "FLYWHEEL_SERVER": shlex.join(FAKE)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    box.started.append(serve)
    assert serve.stdout is not None
    assert "serving at" in serve.stdout.readline()
    serve.send_signal(signal.SIGHUP)
    assert serve.stderr is not None
    said = iter(serve.stderr.readline, "")
    assert any("nothing new to serve" in line for line in said)
    serve.send_signal(signal.SIGTERM)
    serve.communicate(timeout=20)
    assert serve.returncode == 0
