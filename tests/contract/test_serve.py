"""`flywheel serve` as a process around the real engine, on what a real run has measured."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import openai
import pytest
from safetensors.torch import save_file
from servers import HERE

from engine.heads.head import is_draft, raw_tensors
from engine.server.deployment import EMBEDDED
from flywheel.box.clock import utc_text
from flywheel.heads import archive, record
from flywheel.ledger.store import Ledger
from flywheel.loop import epoch, planned
from flywheel.statistics.campaign import QUICK

pytestmark = pytest.mark.slow
LIAR = (sys.executable, str(HERE / "lying_server.py"))
BREAKING = (sys.executable, str(HERE / "breaking_server.py"))


@dataclass
class Home:
    """A folder with a ledger in which one run of the first configuration is on record."""

    folder: Path
    environment: dict[str, str]

    def command(self, *words: str) -> list[str]:
        """A flywheel command on its ledger."""
        return [sys.executable, "-m", "flywheel", *words, "--ledger", str(self.folder / "l.db")]


def made(folder: Path) -> Home:
    """A folder without a ledger yet."""
    environment = {
        **os.environ, "FLYWHEEL_LEASE": str(folder / "device.lock"), "FLYWHEEL_MAX_LOAD": "1000",
        "PYTHONPATH": str(HERE.parents[1]),
    }  # fmt: skip
    return Home(folder, environment)


def done(home: Home, *words: str) -> None:
    """Carry out one flywheel command to its good end."""
    subprocess.run(home.command(*words), env=home.environment, cwd=home.folder, check=True,
                   capture_output=True, timeout=250)  # fmt: skip


@pytest.fixture(scope="module")
def home_of_a_head(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """The same with a draft head of its own, which drafts worse than the checkpoint's."""
    one = made(tmp_path_factory.mktemp("headed"))
    arm = one.folder / "arm"
    arm.mkdir()
    tensors = raw_tensors(EMBEDDED, is_draft)
    markov = next(name for name in tensors if name.endswith("markov_w1.weight"))
    save_file(tensors | {markov: tensors[markov] * 0}, arm / archive.WEIGHTS)
    (arm / archive.METRICS).write_text("{}")
    (arm / archive.LOG).write_text("spoilt by hand")
    ledger = Ledger.open(one.folder / "l.db")
    files = {kind: arm / kind for kind in archive.FILES}
    record.keep(ledger, one.folder / archive.FOLDER, "mine", files, {}, now_utc=utc_text())
    ledger.close()
    done(one, "run", "--quick", "--budget-runs", "1", "--start", "head=mine")
    return one


class Serving:
    """A `flywheel serve` under way: its lines, and the server that it started."""

    def __init__(self, home: Home, *words: str, **environment: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        split = words.index("--") if "--" in words else len(words)
        options = ("--port", str(self.port), *words[:split])
        self.process = subprocess.Popen(
            [*home.command("serve", *options), *words[split:]], cwd=home.folder, text=True,
            env={**home.environment, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def line(self) -> str:
        """The next line on its standard output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def get(self, path: str) -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=10) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)
        except OSError:
            return 0, {}

    def end(self) -> tuple[int, str]:
        """Its status and what it said on standard error."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


@contextlib.contextmanager
def serving(home: Home, *words: str, **environment: str) -> Iterator[Serving]:
    one = Serving(home, *words, **environment)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.end()


@dataclass(frozen=True)
class Night:
    """A host of a campaign without a run: it worked a night of one, and served what that left."""

    home: Home
    away: tuple[dict[str, Any], ...]  # what /health said meanwhile
    line: str
    health: dict[str, Any]
    code: int
    said: str


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Night:
    one = made(tmp_path_factory.mktemp("home"))
    ledger = Ledger.open(one.folder / "l.db")
    planned.open_campaign(ledger, QUICK, start={}, box=epoch.box(), now_utc=utc_text())
    ledger.close()
    now = datetime.now()
    window = f"{now - timedelta(minutes=1):%H:%M}-{now + timedelta(minutes=30):%H:%M}"
    away: list[dict[str, Any]] = []
    with serving(one, "--run-window", window, "--", "--quick", "--budget-runs", "1") as host:

        def look() -> None:
            while host.process.poll() is None and host.get("/health")[0] != 200:
                if (body := host.get("/health")[1]).get("status") == "away":
                    away.append(body)
                time.sleep(0.1)

        thread = threading.Thread(target=look)
        thread.start()
        line = host.line()
        thread.join(30)
        health = host.get("/health")[1]
        code, said = host.end()
    return Night(one, tuple(away), line, health, code, said)


@pytest.fixture(scope="module")
def home(night: Night) -> Home:
    """What that night left: one run of the first configuration."""
    return night.home


def test_it_is_proven_and_named_before_anybody_is_answered(home: Home) -> None:
    with serving(home, "--json") as one:
        seen: set[str] = set()
        while one.process.poll() is None and "ok" not in seen:
            status, body = one.get("/health")
            seen.add(str(body.get("status")))
            if body.get("status") == "proving":
                assert status == 503
                ask = urllib.request.Request(f"{one.url}/v1/chat/completions", data=b"{}")
                with contextlib.suppress(OSError), urllib.request.urlopen(ask, timeout=5):
                    raise AssertionError("answered before it was proven")
            time.sleep(0.02)
        assert "proving" in seen
        assert one.process.stdout is not None
        told = json.loads("".join(iter(one.line, "}\n")) + "}")
        assert "every acceptance as in run r00001" in told["proof"]
        assert told["decision"] is None
        assert told["health"]["decision"] is None
        assert told["health"]["config"]["draft_width"] == 5
        about = one.get("/about.json")[1]
        assert about["proof"] == told["proof"]
        assert about["headline"] == "the first configuration"
        with urllib.request.urlopen(one.url, timeout=10) as page:
            assert "What is served, and why" in page.read().decode()
        status, said = one.end()
        assert status == 0
        assert re.fullmatch(r"open [\d.]+ s after .*\n?drained, ended .* in [\d.]+ s\.\n", said)


def test_a_best_with_a_head_of_its_own_is_proven(home_of_a_head: Home) -> None:
    with serving(home_of_a_head) as one:
        assert "every acceptance as in run r00001" in one.line()
        told = one.get("/health")[1]
    archived = home_of_a_head.folder / "heads" / "mine"
    card = json.loads((archived / archive.CARD).read_text())
    assert told["head"] == {
        "path": str(archived), "sha256": card["files"][archive.WEIGHTS]["sha256"]
    }  # fmt: skip


def test_what_does_not_reproduce_the_record_is_refused(home: Home) -> None:
    with serving(home, FLYWHEEL_SERVER=shlex.join(LIAR)) as one:
        assert one.process.wait(120) == 3
        assert one.line() == ""
        said = one.end()[1]
    assert "what is served is not what was measured: for " in said
    assert " rounds, not " in said
    assert one.get("/health")[0] == 0


def asked(home: Home, *words: str) -> dict[str, Any]:
    """What a flywheel command says in JSON."""
    told = subprocess.run(home.command(*words, "--json"), env=home.environment, cwd=home.folder,
                          check=True, capture_output=True, timeout=60)  # fmt: skip
    body: dict[str, Any] = json.loads(told.stdout)
    return body


def test_a_fault_of_the_engine_is_one_error_a_new_load_and_a_line_in_the_ledger(
    home: Home,
) -> None:
    wish = home.folder / "break"
    environment = {"FLYWHEEL_SERVER": shlex.join(BREAKING), "BREAK": str(wish)}
    with serving(home, **environment) as one:
        one.line()
        client = openai.OpenAI(base_url=f"{one.url}/v1", api_key="none", max_retries=0)
        ask = {"model": "tiny-v4", "messages": [{"role": "user", "content": "Name a colour."}],
               "temperature": 0, "max_tokens": 20}  # fmt: skip
        before = client.chat.completions.create(**ask).choices[0].message.content  # type: ignore[call-overload]
        wish.touch()
        with pytest.raises(openai.InternalServerError, match="engine"):
            client.chat.completions.create(**ask)  # type: ignore[call-overload]
        deadline = time.monotonic() + 60
        while one.get("/health")[0] != 200 or not one.get("/about.json")[1]["faults"]:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        after = client.chat.completions.create(**ask).choices[0].message.content  # type: ignore[call-overload]
        assert after == before
        assert one.get("/health")[1]["faults"] == 1
        (shown,) = one.get("/about.json")[1]["faults"]
        code, said = one.end()
    assert code == 0
    assert shown["said"] == "engine fault, 1 answer ended: RuntimeError"
    assert f"{shown['said']}: " in said  # the words of it are for who runs the box
    told = asked(home, "status")["faults"]
    assert (told["count"], told["last"]["what"], told["last"]["answers"]) == (1, "engine", 1)
    (line,) = asked(home, "report")["faults"]
    assert line["said"].startswith(f"{shown['said']}: ")
    page = subprocess.run(home.command("report"), env=home.environment, capture_output=True,
                          text=True, timeout=60).stdout  # fmt: skip
    assert "faults       1 while serving; the last, " in page


def test_at_and_config_pin_what_is_served(home: Home) -> None:
    mine = home.folder / "mine.json"
    mine.write_text(json.dumps({"config": {"draft_width": 2}}))
    with serving(home, "--config", str(mine)) as one:
        said = one.line()
        assert "the configuration in mine.json" in said
        assert "unproven" in said
        assert one.get("/health")[1]["config"]["draft_width"] == 2
        # Another width of drafts needs no new process, and a stream goes on meanwhile.
        client = openai.OpenAI(base_url=f"{one.url}/v1", api_key="none", max_retries=0)
        stream = client.chat.completions.create(
            model="tiny-v4", messages=[{"role": "user", "content": "Tell a story."}], stream=True,
            temperature=1, max_tokens=150, extra_body={"logit_bias": {"1": -100}},
        )  # fmt: skip
        next(stream)
        mine.write_text(json.dumps({"config": {"draft_width": 3}}))
        one.process.send_signal(signal.SIGHUP)
        assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length"
        deadline = time.monotonic() + 30
        while one.get("/health")[1]["config"]["draft_width"] != 3:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    unknown = subprocess.run(home.command("serve", "--at", "D99"), env=home.environment,
                             capture_output=True, text=True, timeout=60)  # fmt: skip
    assert unknown.returncode == 2
    assert "no decision D99" in unknown.stderr


def test_a_server_does_not_outlive_a_host_that_was_killed(home: Home) -> None:
    mine = home.folder / "plain.json"
    mine.write_text(json.dumps({"config": {"draft_width": 0}}))
    with serving(home, "--config", str(mine), "--json") as one:
        told = json.loads("".join(iter(one.line, "}\n")) + "}")
        one.process.kill()
        one.process.communicate()
        deadline = time.monotonic() + 30
        while Path(f"/proc/{told['pid']}").exists():
            assert time.monotonic() < deadline
            time.sleep(0.2)
    assert one.get("/health")[0] == 0
    assert "has gone: this server ends." in (home.folder / "serve.log").read_text()


def test_a_stream_is_drained_before_the_end(home: Home) -> None:
    with serving(home) as one:
        one.line()
        client = openai.OpenAI(base_url=f"{one.url}/v1", api_key="none", max_retries=0)
        stream = client.chat.completions.create(
            model="tiny-v4", messages=[{"role": "user", "content": "Tell a story."}], stream=True,
            temperature=1, max_tokens=200, extra_body={"logit_bias": {"1": -100}},
        )  # fmt: skip
        next(stream)
        one.process.send_signal(signal.SIGTERM)
        ends = [chunk.choices[0].finish_reason for chunk in stream]
        assert ends[-1] == "length"
        assert one.end()[0] == 0


def test_it_hands_over_works_and_serves_what_is_best_then(night: Night) -> None:
    assert "serving at" in night.line
    assert "every acceptance as in run r00001" in night.line
    assert night.health["status"] == "ok"
    assert night.code == 0
    assert "handing the device over until" in night.said
    assert "flywheel run worked for" in night.said
    assert night.away
    assert "optimising" in night.away[0]["message"]
