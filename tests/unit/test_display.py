"""The same news as a panel on a terminal and as plain lines everywhere else."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from flywheel.display import Display, Scene, plain
from flywheel.progress import Follower, Progress

NONCE = "a" * 32


def terminal(output: io.StringIO) -> Console:
    return Console(
        file=output, force_terminal=True, width=80, _environ={"TERM": "xterm", "COLUMNS": "80"}
    )


def test_a_pipe_gets_dated_lines_and_no_escapes() -> None:
    output = io.StringIO()
    display = Display(Console(file=output, width=60))
    with display.open():
        display.show(headline="x", lever="threads -> 2")
        display.say("promoted  threads-2: a sentence that is longer than sixty columns are wide",
                    "green")
    assert "\x1b" not in output.getvalue()
    assert output.getvalue().count("\n") == 1
    assert display.scene.lever == "threads -> 2"


def test_a_ci_log_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    assert not plain(terminal(io.StringIO()))
    monkeypatch.setenv("CI", "true")
    assert plain(terminal(io.StringIO()))


def test_a_terminal_gets_a_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr("flywheel.display.REFRESH_S", 0.0)
    output = io.StringIO()
    display = Display(terminal(output))
    with display.open():
        display.show(
            headline="lever · block b00007", lever="threads -> 2", band="E 12 of 40",
            budget="9 of 16 confirmations", time_left_s=125.0, run_started_s=0.0,
            run_expected_s=20.0, progress=Progress("points", 3, 8, 5),
        )  # fmt: skip
        display.show(progress=Progress())
        display.say("kept")
    shown = output.getvalue()
    for words in ("block b00007", "threads -> 2", "E 12 of 40", "2 min 05 s", "points 3/8"):
        assert words in shown
    assert "kept" in shown


def test_a_quiet_display_keeps_its_scene_and_says_nothing() -> None:
    output = io.StringIO()
    display = Display(Console(file=output), quiet=True)
    with display.open():
        display.say("nothing")
    assert output.getvalue() == ""
    assert display.scene.notes == ("nothing",)
    assert Scene().headline == "starting"


def test_a_terminal_that_went_away_is_no_error() -> None:
    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(5, "Input/output error")

    Display(Console(file=Gone())).say("into the void")


def test_a_follower_reads_only_what_is_new_and_only_its_own(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    follower = Follower(path, NONCE)
    assert follower.look() == Progress()
    assert follower.progress.share is None

    def beat(done: int, nonce: str = NONCE) -> str:
        event = {"event": "heartbeat", "phase": "points", "done": done, "total": 4}
        return f"@{nonce} {json.dumps(event)}\n"

    with path.open("a") as stream:
        stream.write("prose\n" + beat(1) + beat(3, "b" * 32))
        stream.flush()
        assert follower.look() == Progress("points", 1, 4, 1)
        half = beat(2)
        stream.write(half[:30])
        stream.flush()
        assert follower.look().done == 1
        stream.write(half[30:] + f'@{NONCE} {{"event":"heartbeat"}}\n' + beat(9))
        stream.flush()
    assert follower.look() == Progress("points", 9, 4, 3)
    assert follower.progress.share == 1.0
