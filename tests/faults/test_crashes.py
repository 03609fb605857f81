"""The crash test and the healthy runs, in small; `flywheel selftest --crash 200 --healthy 50`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flywheel.cli import app as cli
from flywheel.selftest.account import account
from flywheel.selftest.crash import crash
from flywheel.selftest.engine.witness import tell
from flywheel.selftest.healthy import healthy
from flywheel.selftest.scene import Scene


def test_nothing_is_lost_doubled_or_left_behind_by_kills() -> None:
    found = crash(5, seed=3)
    assert found.account.good, found.account.complaints
    assert found.account.ok > 0
    assert sum(found.by_victim.values()) == found.kills == len(found.moments_s)


def test_healthy_runs_under_mild_disturbance_all_count() -> None:
    found = healthy(4)
    assert found.runs == found.accepted == 4
    assert found.good, (found.refused, found.account.complaints)


def test_the_account_sees_what_is_lost_doubled_or_left_open(tmp_path: Path) -> None:
    with Scene(tmp_path) as scene:
        scene.loop()
        good = account(scene)
        assert good.good
        assert good.runs == good.ok == 1
        assert good.measurements > 0
        run = scene.run_dir().name
        tell(scene.witness, "start", run=run)
        assert account(scene).launched_twice == 1
        tell(scene.witness, "start", run="r-unheard-of")
        assert account(scene).open == 1
        # A second sealed run that the ledger knows nothing of has lost all that it measured.
        tell(scene.witness, "sealed", run="r-unheard-of", points=8, sha256="0")
        assert account(scene).lost == 8
        assert account(scene, excused={"r-unheard-of"}).lost == 0
        stray = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
        assert account(scene).orphans == 1
        stray.kill()
        stray.wait()


def test_the_command_prints_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["selftest", "--only", "no_log", "--only", "foreign_nonce", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["good"]
    assert told["faults"]["injected"] == 2
    assert told["faults"]["refused_rightly"] == told["faults"]["survived_rightly"] == 1
    assert [row["fault"] for row in told["faults"]["rows"]] == ["no_log", "foreign_nonce"]


@pytest.mark.parametrize("words", [(), ("--only", "nothing_such"), ("--crash", "-1")])
def test_what_cannot_be_tested_is_a_users_mistake(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["selftest", *words]) == 2
    assert capsys.readouterr().err.startswith("flywheel: ")
