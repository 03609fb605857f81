"""Before the first request everything is compiled: at the real widths, for a Hopper GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="TRITON MISSING: NO KERNEL IS COMPILED HERE")

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_warm_up_compiles_whatever_rounds_and_prompts_use() -> None:
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests/kernels")))
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, ROOT / "tests/kernels/warm.py"],
        env=environment | {"PYTHONPATH": path},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    warm, late = json.loads(done.stdout)
    assert {"_project", "_gate_up", "_long", "_move", "_pick"} <= set(warm)
    assert late == []
