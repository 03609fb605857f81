"""Compiles the launches of an operation for a Hopper GPU, where there is none.

The interpreter accepts more than the compiler does, and knows nothing of registers. As a program:
`python cubin.py NAME ARGUMENTS OPTIONS ROWS`, an operation of `operations` with its arguments and
options as JSON; it prints one JSON object a kernel. It has to be a process of its own, without
TRITON_INTERPRET, which Triton reads as kernels are declared.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TARGET = ("cuda", 90, 32)


class Nowhere:
    """Stands where Triton looks for a driver: it names the target and has no device."""

    def get_current_target(self) -> Any:
        """The GPU to compile for."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget(*TARGET)

    def get_current_device(self) -> int:
        """Whatever: nothing is loaded."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """Whatever: nothing is launched."""
        return device


def compile_for_hopper(name: str, arguments: str, options: str, rows: str) -> list[dict[str, Any]]:
    """The same in a process of its own: registers, stack and shared bytes of every kernel."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, __file__, name, arguments, options, rows]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def _compile(name: str, arguments: list[Any], options: dict[str, Any], rows: int) -> None:
    import operations
    import torch
    import triton

    if "dtype" in options:
        options["dtype"] = getattr(torch, options["dtype"])
    found: dict[int, Any] = {}
    run = triton.runtime.jit.JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        found[id(kernel)] = kernel
        return kernel

    triton.runtime.driver.set_active(Nowhere())  # type: ignore[arg-type]
    triton.runtime.jit.JITFunction.run = compile_only  # type: ignore[method-assign]
    op = getattr(operations, name)(*arguments, **options)
    op.kernel(**op.inputs(rows, "cpu", seed=0), **op.options)
    for kernel in found.values():
        print(json.dumps(_resources(kernel)))


def _resources(kernel: Any) -> dict[str, Any]:
    """Spilled registers lie on the stack."""
    import triton

    tool = triton.knobs.nvidia.cuobjdump.path
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(kernel.asm["cubin"])
        text = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    usage = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
    return {
        "kernel": kernel.metadata.name,
        "registers": usage["REG"],
        "stack": usage["STACK"] + usage["LOCAL"],
        "shared": kernel.metadata.shared,
    }


if __name__ == "__main__":
    _compile(sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4]))
