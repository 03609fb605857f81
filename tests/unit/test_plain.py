"""What is printed steers nothing: names, reasons and log lines stay text on every page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from foreign_logs import log
from reports import committed

from flywheel.cli import app as cli
from flywheel.display.plain import plain
from flywheel.report.levers_md import table_row

ROOT = Path(__file__).parents[2]
STEERS = "\x1b]0;title\x07\x1b[31mred\u202egnp.log"


@pytest.fixture
def steered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A ledger of one imported file whose name retitles windows and turns the reading order."""
    (tmp_path / STEERS).write_text(log())
    ledger = tmp_path / "l.db"
    assert cli.main(["import", "dsv4-log", str(tmp_path / STEERS), "--ledger", str(ledger)]) == 0
    assert "\x1b" not in capsys.readouterr().out
    return ledger


@pytest.mark.parametrize("words", [["report"], ["import", "list"]])
def test_a_name_that_would_steer_the_terminal_is_spelled_out(
    words: list[str], steered: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("COLUMNS", "50")
    assert cli.main([*words, "--ledger", str(steered)]) == 0
    printed = capsys.readouterr().out
    assert plain(printed) == printed
    assert r"\x1b[31mred\u202egnp.log" in printed
    assert max(map(len, printed.splitlines())) <= 50
    # What is spelled out takes more room, and pushes nothing off the page.
    assert "(mean of ratios;" in " ".join(printed.split())


def test_a_sentence_about_a_name_steers_nothing_either(
    steered: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["import", "compare", STEERS[:-1], "b", "--ledger", str(steered)]
    assert cli.main(words) != 0
    assert "\x1b" not in capsys.readouterr().err


def test_letters_of_every_script_and_joined_pictures_stay_as_they_are() -> None:
    for text in ("ärger", "حالت\u200cها", "👩\u200d🚀", "a\nb", "\N{NO-BREAK SPACE}"):
        assert plain(text) == text
    assert plain("\ud800\x9b\x7f\t") == r"\ud800\x9b\x7f\t"


def test_a_cell_of_a_markdown_table_opens_no_tag_and_ends_no_row() -> None:
    assert table_row(["<script>|\n\x1b[31m"]) == r"| &lt;script>\| \x1b[31m |"


@pytest.mark.parametrize("words", [["width"], ["--json"]])
def test_a_terminal_of_ascii_alone_is_served(words: list[str], tmp_path: Path) -> None:
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii",
           "PYTHONPATH": str(ROOT)}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "flywheel", "report", *words, "--ledger", committed(tmp_path)],
        env=env, capture_output=True, timeout=60, check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()
    if words == ["--json"]:
        assert "·" in json.loads(done.stdout)["canaries"]["text"]
