"""Programs whose output is no longer read: they end quietly, with an exit code that says so."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_output_that_nobody_reads_ends_a_program_without_a_traceback(form: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as stdout:
        done = subprocess.run(
            [sys.executable, "-m", "engine.inventory", "--synthetic", "tiny-v4", *form],
            stdout=stdout, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_output_onto_a_full_disk_is_one_sentence(form: list[str]) -> None:
    with open("/dev/full", "wb") as stdout:
        done = subprocess.run(
            [sys.executable, "-m", "engine.inventory", "--synthetic", "tiny-v4", *form],
            stdout=stdout, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "engine.inventory: No space left on device.\n")


def test_a_pipe_that_breaks_elsewhere_stays_a_defect() -> None:
    code = (
        "import sys, types; from engine import entry\n"
        "program = types.ModuleType('p.command')\n"
        "def main(): raise BrokenPipeError('of a socket')\n"
        "program.main = main; sys.modules['p'] = types.ModuleType('p')\n"
        "sys.modules['p.command'] = program; entry.enter('p')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "of a socket" in done.stderr
