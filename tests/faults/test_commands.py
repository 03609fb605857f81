"""One short campaign through the command line, and every question one can ask it afterwards."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from harness import checkpoint, fake_command

from flywheel.box.lease import device_path, holder
from flywheel.cli import app as cli
from flywheel.ledger.store import Ledger
from flywheel.ledger.takeovers import takeovers

ENDINGS = {"promoted", "rejected", "inconclusive", "void", "incorrect"}
SUITE = {"name": "fake", "prompts": [{"id": "code-0", "category": "code"},
                                     {"id": "prose-0", "category": "prose"}]}  # fmt: skip


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(list(words)) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_a_campaign_and_its_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint(tmp_path / "checkpoint")
    (tmp_path / "suite.json").write_text(json.dumps(SUITE))
    engine = fake_command("--effect", "threads=3:0.9", "--noise", "0.002")
    monkeypatch.setenv("FLYWHEEL_ENGINE", shlex.join(engine))
    words = ("--claim", "c", "--falsify", "f", "--predicted-gain", "0.05")
    answer(capsys, "levers", "add", "try-threads", "--set", "threads=3", *words)
    answer(capsys, "levers", "add", "try-moe", "--set", "moe=gather", *words)

    run = ("run", "--quick", "--checkpoint", "checkpoint", "--suite", "suite.json",
           "--only", "try-threads", "--only", "try-moe", "--json")  # fmt: skip
    told = json.loads(answer(capsys, *run))
    assert told["session"]["runs"] == told["session"]["ok"] > 4
    assert 0 < told["session"]["engine_share"] < 1
    decided = {row["name"]: row for row in told["decisions"] if not row["canary"]}
    assert decided["try-threads"]["ending"] == "promoted"
    assert decided["try-moe"]["ending"] == "rejected"
    assert {row["ending"] for row in told["decisions"]} <= ENDINGS
    assert any(row["canary"] for row in told["decisions"])

    report = json.loads(answer(capsys, "report", "--json", "--html", "report.html"))
    assert report["decisions"] == told["decisions"]
    assert "<html" in Path("report.html").read_text()
    assert "canaries" in answer(capsys, "report")
    assert json.loads(answer(capsys, "best", "--json"))["config"] == {"threads": 3}
    assert "threads = 3" in answer(capsys, "best")
    assert json.loads(answer(capsys, "ledger", "rebuild", "--json"))["same"]
    assert "the same best" in answer(capsys, "ledger", "rebuild")
    assert json.loads(answer(capsys, "ledger", "verify", "--json"))["whole"]
    assert "is whole" in " ".join(answer(capsys, "ledger", "verify").split())
    levers = json.loads(answer(capsys, "levers", "list", "--json"))["levers"]
    states = {lever["name"]: lever["state"] for lever in levers}
    assert "already in the incumbent" in states["try-threads"]
    assert "decided in this campaign" in states["try-moe"]
    assert json.loads(answer(capsys, "status", "--json"))["campaign"]["promotions"] == 1
    assert "not running" in answer(capsys, "status")

    assert "written anew" in answer(capsys, "levers", "write")
    assert json.loads(answer(capsys, "levers", "write", "--check", "--json"))["stale"] is False
    Path("LEVERS.md").write_text("edited by hand")
    assert cli.main(["levers", "write", "--check"]) == 1
    capsys.readouterr()

    # A stricter bar: the tenth of the time that threads=3 saves is worth less than a fifth.
    strict = ("readjudicate", "--delta-min", "0.2", "--useful", "0.2", "--json")
    flips = json.loads(answer(capsys, *strict))["flips"]
    assert [(flip["lever"], flip["before"]) for flip in flips] == [("try-threads", "promoted")]
    assert "0 verdicts flip" in answer(capsys, *strict[:-1])
    assert json.loads(answer(capsys, "best", "--json"))["config"] == {}
    assert "nothing was promoted yet" in answer(capsys, "best")
    assert cli.main(["readjudicate", "--delta-min", "5"]) == 2
    assert "delta_min" in capsys.readouterr().err


def test_serving_from_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint(tmp_path / "checkpoint")
    (tmp_path / "suite.json").write_text(json.dumps(SUITE))
    monkeypatch.setenv("FLYWHEEL_ENGINE", shlex.join(fake_command()))
    server = Path(__file__).with_name("fake_server.py")
    monkeypatch.setenv("FLYWHEEL_SERVER", shlex.join([sys.executable, str(server)]))
    answer(capsys, "run", "--quick", "--checkpoint", "checkpoint", "--suite", "suite.json",
           "--budget-runs", "1")  # fmt: skip

    device_path().write_text(json.dumps({"purpose": "abandoned"}))
    url = "http://127.0.0.1:38521/health"

    def stop_once_ready() -> None:
        for _ in range(200):
            try:
                with urllib.request.urlopen(url, timeout=1):
                    pass
            except (urllib.error.URLError, OSError):  # not there yet, or not proven
                threading.Event().wait(0.05)
                continue
            break
        threading.Event().wait(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=stop_once_ready)
    thread.start()
    told = json.loads(answer(capsys, "serve", "--port", "38521", "--json"))
    thread.join()
    assert told["health"]["status"] == "ok"
    assert told["proof"].startswith("unproven")
    assert told["url"] == "http://127.0.0.1:38521"
    assert holder(device_path()) is None
    ledger = Ledger.open(tmp_path / "ledger.db", create=False)
    with ledger.reading() as connection:
        (taken,) = takeovers(connection)
    ledger.close()
    assert taken.previous["purpose"] == "abandoned"
    body = json.loads((tmp_path / "served.json").read_text())
    assert body["checkpoint"] == str(tmp_path / "checkpoint")
