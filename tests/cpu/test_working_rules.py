"""CLAUDE.md: every command in it exists and runs, with the options that it is written with."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flywheel.cli import app as cli

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CLAUDE.md").read_text(encoding="utf-8")
SECTIONS = ("Commands", "What may be edited", "What a number needs before it may be written",
            "Detachment", "Dead engines")  # fmt: skip
# Words that stand for something of the reader's own, and what this repository has for them.
MEANT = {"NAME": "hyper.host", "A": "D1", "B": "D2"}
# What answers at once, and so is run as it stands on a copy of this repository's ledger; of all
# others, which take minutes, a device or a person, the help is asked for, and has the options.
AT_ONCE = (
    "report", "status", "best", "report lever", "report run", "report diff", "report width",
    "report tally", "levers list", "levers show", "levers why-next", "levers attempts",
    "levers propose", "ledger verify", "heads list", "readjudicate", "engine.fields",
    "engine.inventory",
)  # fmt: skip


def lines() -> list[str]:
    """The block's lines, without their remarks."""
    block = TEXT.split("## Commands\n")[1].split("\n## ")[0]
    return [re.sub(r"\s+# .*", "", line).strip() for line in block.splitlines() if line.strip()]


def expanded(line: str) -> Iterator[str]:
    """Every command that a line stands for: one of each `{a | b}`."""
    match = re.search(r"\{([^{}]*)\}", line)
    if match is None:
        yield line
        return
    for choice in match[1].split("|"):
        yield from expanded(line[: match.start()] + choice.strip() + line[match.end() :])


COMMANDS = [command for line in lines() for command in expanded(line)]


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository's own ledger."""
    path = tmp_path_factory.mktemp("rules") / "ledger.db"
    shutil.copy(ROOT / "ledger.db", path)
    return path


def test_the_rules_are_short_and_begin_with_the_commands() -> None:
    assert len(TEXT.splitlines()) <= 80
    headings = re.findall(r"^## (.+)$", TEXT, re.MULTILINE)
    assert tuple(headings[: len(SECTIONS)]) == SECTIONS


def test_the_block_is_read_whole() -> None:
    assert len(COMMANDS) > 50
    assert all(c.startswith(("make ", ".venv/bin/")) for c in COMMANDS), COMMANDS
    assert len(set(COMMANDS)) == len(COMMANDS)


@pytest.mark.parametrize("name", AT_ONCE)
def test_what_is_run_for_real_is_in_the_rules(name: str) -> None:
    assert any(f" {name}" in command or f"-m {name}" in command for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_in_the_rules_runs(
    command: str, ledger: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    program, *words = shlex.split(command)
    if program == "make":
        made = subprocess.run(["make", "-n", *words], capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
        assert made.stdout
    elif program == ".venv/bin/flywheel":
        _flywheel(words, ledger, capsys)
    elif words[:2] == ["-m", "pytest"]:
        assert list(ROOT.glob(words[2])), f"{words[2]} matches nothing"
    else:
        assert (program, words[0]) == (".venv/bin/python", "-m")
        _module(words[1], words[2:], monkeypatch, capsys)


def _flywheel(words: list[str], ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = " ".join(w for w in words[:2] if re.fullmatch(r"[a-z][a-z0-9-]*", w))
    if name in AT_ONCE:
        found = [_meant(word, ledger) for word in words]
        assert cli.main([*found, "--ledger", str(ledger)]) == 0, capsys.readouterr()
        assert capsys.readouterr().out
        return
    place = next((i for i, w in enumerate(words) if w.startswith("-") or w.isupper()), len(words))
    assert cli.main([*words[:place], "--help"]) == 0
    _has(words, capsys.readouterr().out)


def _meant(word: str, ledger: Path) -> str:
    if word == "ID":
        from flywheel.ledger import views
        from flywheel.ledger.store import Ledger

        opened = Ledger.read(ledger)
        with opened.reading() as connection:
            found = views.load(connection).blocks()[0].runs[0].id
        opened.close()
        return found
    return MEANT.get(word, word)


def _module(
    name: str, words: list[str], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    whole = name in AT_ONCE
    bare = [w for w in words if re.fullmatch(r"[a-z]+", w)]
    monkeypatch.setattr(sys, "argv", [name, *(words if whole else [*bare[:1], "--help"])])
    with pytest.raises(SystemExit) as left:
        runpy.run_module(name, run_name="__main__", alter_sys=False)
    out = capsys.readouterr().out
    assert left.value.code in (0, None)
    assert out
    if not whole:
        _has(words, out)


def _has(words: list[str], help_text: str) -> None:
    """Every option that a command is written with stands in its help."""
    for option in (w.partition("=")[0] for w in words if w.startswith("--")):
        assert option in help_text, f"{option} is no option of {' '.join(words)}"
