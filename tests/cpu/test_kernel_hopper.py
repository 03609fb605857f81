"""The kernels of a step compile for a Hopper GPU, and into what a fast kernel is made of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="TRITON MISSING: NO KERNEL IS COMPILED HERE")

ROOT = Path(__file__).parents[2]
STREAMING = ("fp8_linear", "fp8_linear apart", "project", "project early", "route", "lm_head")


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    """One process without the interpreter compiles them all; each operation is one launch."""
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests/kernels")))
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, ROOT / "tests/kernels/hopper.py"],
        env=environment | {"PYTHONPATH": path},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    kernels = json.loads(done.stdout)
    assert all(len(launches) == 1 for launches in kernels.values())
    return {name: next(iter(launches.values())) for name, launches in kernels.items()}


def test_no_kernel_spills_registers(found: dict[str, dict[str, Any]]) -> None:
    assert {name: k["stack"] + k["local"] for name, k in found.items()} == dict.fromkeys(found, 0)


def test_weights_come_in_copies_of_16_bytes(found: dict[str, dict[str, Any]]) -> None:
    for name in STREAMING:
        words = found[name]["instructions"]
        assert words["cp.async.cg.shared.global"] > 0, name
        assert "cp.async.ca.shared.global" not in words, name
        assert not any(word.startswith("ld.global.b16") for word in words), name


def test_products_run_on_tensor_cores(found: dict[str, dict[str, Any]]) -> None:
    for name in STREAMING:
        assert any("mma" in word and "bf16" in word for word in found[name]["instructions"]), name


def test_programs_meet_in_order_and_read_past_the_first_cache(
    found: dict[str, dict[str, Any]],
) -> None:
    meetings = {"fp8_linear": 1, "route": 1, "lm_head": 2, "markov": 2, "pick": 2}
    for name, count in meetings.items():
        words = found[name]["instructions"]
        assert words["atom.global.gpu.acq_rel.add.u32"] == count, name
        assert any(word.startswith("ld.global.cg") for word in words), name


def test_kernels_that_begin_early_ask_for_weights_and_then_wait(
    found: dict[str, dict[str, Any]],
) -> None:
    early = {name for name, kernel in found.items() if kernel["early"]}
    assert early == {"fp8_linear apart", "project early", "route early", "markov early"}
    for word in ("griddepcontrol.wait", "cp.async.bulk.prefetch.L2.global"):
        assert {name for name, kernel in found.items() if word in kernel["instructions"]} == early
