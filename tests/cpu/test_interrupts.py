"""Ctrl-C while a program's imports run: one sentence and an exit code, and no traceback."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = (
    *((name, 1) for name in ("flywheel", "flywheel.simulate")),
    *((name, 130) for name in (
        "engine.bench", "engine.fields", "engine.heads", "engine.inventory", "engine.measure",
        "engine.profile", "engine.server", "engine.server.trial", "engine.train",
        "engine.train.corpus",
    )),
)  # fmt: skip
IMPORT = "import time:"
# Modules that were loaded since the program's first own one.
EARLY = (1, 4, 16)


@pytest.mark.parametrize("modules", EARLY)
@pytest.mark.parametrize(("name", "code"), PROGRAMS)
def test_ctrl_c_during_imports_is_one_sentence(name: str, code: int, modules: int) -> None:
    with begun(modules, "-m", name) as program:
        out, said = interrupted(program)
    assert said == [f"{name}: interrupted."]
    assert (program.returncode, out) == (code, "")


def test_a_document_was_promised_and_comes() -> None:
    with begun(1, "-m", "flywheel", "status", "--json") as program:
        out, _ = interrupted(program)
    assert out == '{\n "error": "interrupted.",\n "exit_code": 1\n}\n'


def test_the_installed_command_answers_too() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = project["scripts"]["flywheel"].partition(":")
    with begun(2, "-c", f"import sys, {module} as m; sys.exit(m.{function}())") as program:
        assert interrupted(program) == ("", ["flywheel: interrupted."])
    assert program.returncode == 1


@pytest.mark.parametrize("modules", [350, 450, 600])
@pytest.mark.parametrize(
    ("words", "code"), [(("flywheel", "doctor"), 1), (("engine.server",), 130)]
)
def test_imports_of_one_command_are_no_other_than_those_of_all(
    words: tuple[str, ...], code: int, modules: int
) -> None:
    with begun(modules, "-m", *words) as program:
        assert interrupted(program) == ("", [f"{words[0]}: interrupted."])
    assert program.returncode == code


@pytest.mark.parametrize(
    ("package", "words", "code"),
    [("flywheel", "'late', 'late.command'", 1), ("engine", "'late'", 130)],
)
def test_an_interrupt_within_an_eval_keeps_its_exit_code(
    tmp_path: Path, package: str, words: str, code: int
) -> None:
    late = tmp_path / "late"
    late.mkdir()
    (late / "__init__.py").touch()
    (late / "__main__.py").write_text(
        f"import sys\nfrom {package}.entry import enter\nsys.exit(enter({words}))\n"
    )
    (late / "command.py").write_text(
        "import os, signal\ndef main(): eval('os.kill(os.getpid(), signal.SIGINT)')\n"
    )
    path = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", "late"], capture_output=True, text=True, env={**os.environ, **path}
    )
    assert (done.returncode, done.stderr) == (code, "late: interrupted.\n")


@pytest.mark.parametrize("name", ["flywheel", "engine.fields"])
def test_who_ignores_it_goes_on(name: str) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with begun(1, "-m", name, "--help") as program:
            out, said = interrupted(program)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (program.returncode, said) == (0, [])
    assert "--help" in out


@contextmanager
def begun(modules: int, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A program that has loaded so many modules; the interpreter itself tells of each."""
    program = subprocess.Popen(
        [sys.executable, "-X", "importtime", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert program.stdout is not None
    assert program.stderr is not None
    try:
        for line in program.stderr:
            if line.split()[-1] in ("engine.entry", "flywheel.entry"):
                break
        assert len(list(itertools.islice(program.stderr, modules))) == modules
        yield program
    finally:
        program.kill()
        program.wait()
        program.stdout.close()
        program.stderr.close()


def interrupted(program: subprocess.Popen[str]) -> tuple[str, list[str]]:
    """What it still writes after Ctrl-C, the interpreter's own lines left out."""
    program.send_signal(signal.SIGINT)
    assert program.stdout is not None
    assert program.stderr is not None
    said = [line.rstrip() for line in program.stderr if not line.startswith(IMPORT)]
    program.wait(60)
    return program.stdout.read(), said
