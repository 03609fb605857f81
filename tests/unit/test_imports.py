"""What must start at once, or judge alone, loads nothing heavy and nothing of the engine."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("numpy", "scipy", "sqlalchemy", "psutil", "pynvml", "rich", "typer", "apscheduler",
         "torch", "engine", "kernels")  # fmt: skip


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("flywheel.run.supervise", ()),
        ("flywheel.run.parse", ()),
        ("flywheel.run.manifest", ()),
        ("flywheel.run.launch", ()),
        ("flywheel.selftest.engine.__main__", ()),
        ("flywheel.cli.app", ("rich", "typer")),
    ],
)
def test_a_light_module_stays_light(module: str, allowed: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & (set(HEAVY) - set(allowed))
