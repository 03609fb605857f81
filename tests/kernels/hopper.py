"""What a kernel becomes on a Hopper GPU, where there is none: compiled in full, never launched.

`python hopper.py` compiles the launches of the operations in `REAL` at the model's shapes and
prints one JSON object: for each kernel of each operation its registers, bytes of stack, shared
memory and instructions.
"""

from __future__ import annotations

import collections
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import operations
import torch
import triton
from gates import Operation
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from kernels import fp8_linear, markov, project, router

REAL = {
    "fp8_linear": operations.fp8_linear(4096, 4096),
    "fp8_linear apart": operations.fp8_linear(
        4096, 4096, tile=fp8_linear.Tile(8, 32, 1, 4, 3, parts=4, early=True)
    ),
    "project": operations.project(1536, 1024, 4096),
    "project early": operations.project(512, 96, 4096, tile=project.Tile(early=True)),
    "route": operations.route(160, 4096, 6),
    "route early": operations.route(160, 4096, 6, vocabulary=9, tile=router.Tile(early=True)),
    "lm_head": operations.lm_head(1280, 4096),
    "markov": operations.markov(1280, 256, 4096),
    "markov early": operations.markov(1280, 256, 4096, tile=markov.Tile(early=True)),
    "pick": operations.pick(12928, temperature=1.0),
}


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
        "shared": kernel.metadata.shared,
        "early": bool(kernel.metadata.launch_pdl),
        **_resources(kernel.asm["cubin"]),
        "instructions": collections.Counter(words),
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


def report(op: Operation, rows: int) -> dict[str, Any]:
    """Facts of every kernel that a call on `rows` rows launches, by its name."""
    with compiled() as found:
        op.kernel(**op.inputs(rows, "cpu", seed=0), **op.options)
    return {kernel.metadata.name: facts(kernel) for kernel in found}


if __name__ == "__main__":
    torch.set_num_threads(1)
    assert "TRITON_INTERPRET" not in os.environ
    print(json.dumps({name: report(op, 6) for name, op in REAL.items()}))
