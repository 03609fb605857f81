"""The same news as a panel on a terminal and as plain lines everywhere else."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest
from rich.console import Console

from flywheel.box.lease import Lease, daemon_path
from flywheel.display import watch
from flywheel.display.panel import Display, Scene, plain
from flywheel.display.progress import Follower, Progress
from flywheel.files import dump
from flywheel.loop.glance import status_path

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
    monkeypatch.setattr("flywheel.display.panel.REFRESH_S", 0.0)
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
    assert [note[8:] for note in display.scene.notes] == ["  nothing"]
    assert Scene().headline == "starting"


def test_a_watcher_shows_the_time_at_which_a_line_was_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = tmp_path / "ledger.db"
    output = io.StringIO()
    with Lease.acquire(daemon_path(ledger), "flywheel run") as held:
        said = {"scene": {"notes": ["03:10:00  a backup ran"], "said": 1}, "reason": "done"}
        status_path(ledger).write_text(dump({**said, "ended": True}))
        monkeypatch.setattr("flywheel.display.watch.time.sleep", lambda _: held.release())
        watch.attach(ledger, Display(Console(file=output)))
    assert output.getvalue() == "03:10:00  a backup ran\n"


def test_a_watcher_leaves_when_its_reader_does(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    reader, writer = os.pipe()
    with Lease.acquire(daemon_path(ledger), "flywheel run"), os.fdopen(writer, "w") as stream:
        os.close(reader)
        with pytest.raises(BrokenPipeError):
            watch.attach(ledger, Display(Console(file=stream)))


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


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), OSError(5, "EIO"),
                                   ValueError("I/O operation on closed file")])  # fmt: skip
def test_a_display_that_breaks_never_stops_the_loop(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(io.StringIO):
        broken = False

        def write(self, text: str) -> int:
            if self.broken:
                raise error
            return super().write(text)

        flush = write  # type: ignore[assignment]

        def fileno(self) -> int:
            raise io.UnsupportedOperation

    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr("flywheel.display.panel.REFRESH_S", 0.0)
    # What rich does for a reader that went away; the standard output of the tests stays.
    monkeypatch.setattr(Console, "on_broken_pipe", lambda _: sys.exit(1))
    output = Broken()
    display = Display(terminal(output))
    with display.open():
        output.broken = True
        display.show(headline="on")
        display.say("into the void")
    assert display.scene.headline == "on"
    assert [note[8:] for note in display.scene.notes] == ["  into the void"]
    Display(Console(file=output)).say("plain lines too")
