"""Kernels compile for a Hopper GPU at the model's shapes, without one, and keep to registers."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import cubin
import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("TRITON MISSING: NO KERNEL IS COMPILED HERE", allow_module_level=True)

SHARED_BYTES = 227 << 10
STACK_BYTES = 64  # a thread's; a few registers may be put aside once, never in a loop
SIZES = [64, 512, 32, 128]  # heads, channels, rotated pairs, window
CSA = {"capacity": 32_768, "ratio": 4, "count": 512}
STEP: dict[str, Any] = {"kind": "attend"}
LONG: dict[str, Any] = {"kind": "attend_long"}
CASES = [
    ("attend", [*SIZES, 50], STEP, 1),
    ("attend", [*SIZES, 9_000], STEP | CSA, 6),
    ("attend", [*SIZES, 9_000], STEP | {"capacity": 1024, "ratio": 128}, 6),
    ("attend", [*SIZES, 9_000], LONG | CSA, 20),
    ("attend", [*SIZES, 9_000], {"kind": "attend_block"}, 5),
    ("choose_rows", [64, 128, 8_192, 9_000], {"count": 512}, 6),
    ("choose_rows", [64, 128, 32_768, 9_000], {"count": 512}, 20),
]
EXACT = [
    ("attend", [*SIZES, 9_000], STEP | CSA | {"dtype": "float32"}, 6),
    ("attend", [*SIZES, 9_000], LONG | CSA | {"dtype": "float32"}, 20),
]


@pytest.mark.parametrize(("name", "arguments", "options", "rows"), [*CASES, *EXACT])
def test_no_kernel_needs_more_registers_or_shared_memory_than_there_are(
    name: str, arguments: list[int], options: dict[str, Any], rows: int
) -> None:
    kernels = cubin.compile_for_hopper(name, json.dumps(arguments), json.dumps(options), str(rows))
    assert kernels
    for kernel in kernels:
        assert kernel["stack"] <= STACK_BYTES, kernel
        assert kernel["shared"] <= SHARED_BYTES, kernel
