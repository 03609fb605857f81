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
SHARED_BYTES = 227 << 10
STATE = ("attend", "choose")
ASIDE_BYTES = 64  # a thread's: a few of their registers may be put aside once, never in a loop
EXPERTS = (
    "gate_up", "down", "gate_up apart", "down apart", "sorted gate_up", "sorted down",
)  # fmt: skip
STREAMING = (
    "fp8_linear", "fp8_linear apart", "project", "project late", "route", "beside", "lm_head",
    *EXPERTS[:2],
)  # fmt: skip


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
    return {
        name if len(launches) == 1 else f"{name}: {kernel['kernel']}": kernel
        for name, launches in json.loads(done.stdout).items()
        for kernel in launches
    }


def test_no_kernel_spills_registers_or_needs_more_shared_memory_than_there_is(
    found: dict[str, dict[str, Any]],
) -> None:
    for name, kernel in found.items():
        asides = ASIDE_BYTES if name.startswith(STATE) else 0
        assert kernel["stack"] + kernel["local"] <= asides, name
        assert kernel["shared"] <= SHARED_BYTES, name
    assert sum(name.startswith(STATE) for name in found) > 12


def test_weights_come_in_copies_of_16_bytes(found: dict[str, dict[str, Any]]) -> None:
    for name in STREAMING:
        words = found[name]["instructions"]
        assert words.get("cp.async.cg.shared.global") or words.get("ld.global.v4.b32"), name
        # Half a tile of an expert has scales of eight bytes.
        assert name in EXPERTS or "cp.async.ca.shared.global" not in words, name
        assert not any(word.startswith("ld.global.b16") for word in words), name


def test_products_run_on_tensor_cores(found: dict[str, dict[str, Any]]) -> None:
    for name in STREAMING:
        assert any("mma" in word and "bf16" in word for word in found[name]["instructions"]), name


def test_the_weights_of_experts_are_operands_where_they_are_decoded(
    found: dict[str, dict[str, Any]],
) -> None:
    assert {name: found[name]["staged"] for name in EXPERTS} == dict.fromkeys(EXPERTS, 0)
    for name in EXPERTS:
        wide = any("wgmma" in word for word in found[name]["instructions"])
        assert wide == name.startswith("sorted"), name


def test_programs_meet_in_order_and_read_past_the_first_cache(
    found: dict[str, dict[str, Any]],
) -> None:
    meetings = {"fp8_linear": 1, "route": 1, "beside": 1, "lm_head": 2, "markov": 2, "pick": 2}
    for name, count in meetings.items():
        words = found[name]["instructions"]
        assert words["atom.global.gpu.acq_rel.add.u32"] == count, name
        assert any(word.startswith("ld.global.cg") for word in words), name


def test_kernels_that_begin_early_wait_and_only_a_small_one_fetches_what_comes_later(
    found: dict[str, dict[str, Any]],
) -> None:
    early = {name for name, kernel in found.items() if kernel["early"]}
    weighty = {name for name in early if not name.startswith(STATE)}
    assert weighty >= {
        "fp8_linear apart",
        "gate_up", "gate_up in two: _begin", "gate_up in two: _gate_up", "down early", "project",
        "route", "beside", "markov early",
    }
    fetching = {"markov", "markov early"}
    asking = {"griddepcontrol.wait": early, "cp.async.bulk.prefetch.L2.global": fetching}
    for word, names in asking.items():
        assert {name for name, kernel in found.items() if word in kernel["instructions"]} == names
