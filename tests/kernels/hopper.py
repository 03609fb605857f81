"""What kernels become on a Hopper GPU, where there is none: compiled in full, never launched.

The interpreter accepts more than the compiler does, and knows nothing of registers. `python
hopper.py` compiles the launches of the operations in `REAL` at the model's shapes and prints one
JSON object: for each operation a list of its kernels' registers, bytes of stack, shared memory and
instructions. It has to be a process of its own, without TRITON_INTERPRET, which Triton reads as
kernels are declared.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict
from unittest.mock import patch

import operations
import torch
import triton
from gates import Operation
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from kernels import fp8_linear, markov, moe, moe_prefill, project, router


class _Rows(TypedDict, total=False):
    """The compressed rows that an attention chooses from."""

    capacity: int
    ratio: int
    count: int


REAL = {
    "fp8_linear": operations.fp8_linear(4096, 4096),
    "fp8_linear apart": operations.fp8_linear(
        4096, 4096, tile=fp8_linear.Tile(8, 32, 1, 4, 3, parts=4, early=True)
    ),
    "gate_up": operations.gate_up(2, 1024, 512, 2),
    "down": operations.down(2, 1024, 512, 2),
    "gate_up in two": operations.gate_up(2, 1024, 512, 2, kernel=operations.in_two),
    "down early": operations.down(2, 1024, 512, 2, tile=dataclasses.replace(moe.DOWN, early=True)),
    "gate_up apart": operations.gate_up(2, 1024, 512, 2, tile=moe.Tile(16, 128, 1, 2, 4, parts=2)),
    "down apart": operations.down(2, 1024, 512, 2, tile=moe.Tile(32, 128, 1, 2, 4, parts=2)),
    "sorted gate_up": operations.gate_up(2, 1024, 512, 2, kernel=moe_prefill.gate_up),
    "sorted down": operations.down(2, 1024, 512, 2, kernel=moe_prefill.down),
    "project": operations.project(1536, 1024, 4096),
    "project late": operations.project(512, 96, 4096, tile=project.Tile(early=False)),
    "route": operations.route(160, 4096, 6),
    "route late": operations.route(160, 4096, 6, vocabulary=9, tile=router.Tile(early=False)),
    "beside": operations.beside(160, 4096, 512, 6),
    "lm_head": operations.lm_head(1280, 4096),
    "markov": operations.markov(1280, 256, 4096),
    "markov early": operations.markov(1280, 256, 4096, tile=markov.Tile(early=True)),
    "pick": operations.pick(12928, temperature=1.0),
}
_SIZES = (64, 512, 32, 128)  # heads, channels, rotated pairs, window
_CSA: _Rows = {"capacity": 32_768, "ratio": 4, "count": 512}
_HCA: _Rows = {"capacity": 1024, "ratio": 128}
_FAR, _SHORT, _LONG = 9_000, 50, 20  # first positions, and rows of a passage
# Operations over a sequence's state, each with its rows.
STATE = {
    "attend window": (operations.attend(*_SIZES, _SHORT, kind="attend"), 1),
    "attend csa": (operations.attend(*_SIZES, _FAR, kind="attend", **_CSA), 6),
    "attend hca": (operations.attend(*_SIZES, _FAR, kind="attend", **_HCA), 6),
    "attend long": (operations.attend(*_SIZES, _FAR, kind="attend_long", **_CSA), _LONG),
    "attend block": (operations.attend(*_SIZES, _FAR, kind="attend_block"), 5),
    "attend csa exact": (
        operations.attend(*_SIZES, _FAR, kind="attend", dtype=torch.float32, **_CSA), 6
    ),
    "attend long exact": (
        operations.attend(*_SIZES, _FAR, kind="attend_long", dtype=torch.float32, **_CSA), _LONG
    ),
    "attend csa packed": (operations.attend(*_SIZES, _FAR, kind="attend", packed=True, **_CSA), 6),
    "attend hca packed": (operations.attend(*_SIZES, _FAR, kind="attend", packed=True, **_HCA), 6),
    "attend long packed": (
        operations.attend(*_SIZES, _FAR, kind="attend_long", packed=True, **_CSA), _LONG
    ),
    "attend long exact packed": (
        operations.attend(
            *_SIZES, _FAR, kind="attend_long", dtype=torch.float32, packed=True, **_CSA
        ),
        _LONG,
    ),
    "choose": (operations.choose_rows(64, 128, 8_192, _FAR, count=512), 6),
    "choose far": (operations.choose_rows(64, 128, 32_768, _FAR, count=512), 6),
    "choose packed": (
        operations.choose_rows(64, 128, 8_192, _FAR, count=512, packed=True), 6
    ),
    "choose far packed": (
        operations.choose_rows(64, 128, 32_768, _FAR, count=512, packed=True), 6
    ),
    "choose long packed": (
        operations.choose_rows(64, 128, 32_768, _FAR, count=512, packed=True), _LONG
    ),
    "choose long": (operations.choose_rows(64, 128, 32_768, _FAR, count=512), _LONG),
}  # fmt: skip


class _NoDevice:
    """As much of a driver as compiling for an H200 needs."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def compiled() -> Iterator[list[Any]]:
    """The kernels that are launched inside, compiled and not run."""
    found: list[Any] = []
    run = JITFunction.run

    def only_compile(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        found.append(run(self, *args, grid=grid, warmup=True, **kwargs))

    driver.set_active(_NoDevice())
    with patch.object(JITFunction, "run", only_compile):
        yield found


def facts(kernel: Any) -> dict[str, Any]:
    """Resources of a compiled kernel and how often each instruction stands in its text."""
    words = re.findall(r"^\s*[{]?\s*(?:@!?%p\d+ )?([a-z][\w.:]+)[\s;]", kernel.asm["ptx"], re.M)
    return {
        "kernel": kernel.metadata.name,
        "shared": kernel.metadata.shared,
        "early": bool(kernel.metadata.launch_pdl),
        **_resources(kernel.asm["cubin"]),
        "instructions": collections.Counter(words),
        # Registers put into shared memory so that other lanes may read them as operands.
        "staged": len(re.findall(r"ttg\.local_alloc %", kernel.asm["ttgir"])),
    }


def _resources(cubin: bytes) -> dict[str, int]:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    return {
        name: int(re.search(rf"\b{word}:(\d+)", text)[1])  # type: ignore[index]
        for name, word in (("registers", "REG"), ("stack", "STACK"), ("local", "LOCAL"))
    }


def report(op: Operation, rows: int) -> list[dict[str, Any]]:
    """Facts of every kernel that a call on `rows` rows launches."""
    with compiled() as found:
        op.kernel(**op.inputs(rows, "cpu", seed=0), **op.options)
    return [facts(kernel) for kernel in {id(kernel): kernel for kernel in found}.values()]


if __name__ == "__main__":
    torch.set_num_threads(1)
    assert "TRITON_INTERPRET" not in os.environ
    every = {name: (op, 6) for name, op in REAL.items()} | STATE
    print(json.dumps({name: report(op, rows) for name, (op, rows) in every.items()}))
