"""FP8 products."""

from __future__ import annotations

import torch
from gates import Inputs, Operation

from operations.draws import BF16_RTOL, fp8, normal


def fp8_linear(
    n: int, k: int, *, groups: int = 1, dtype: torch.dtype = torch.bfloat16, **options: object
) -> Operation:
    """`kernels.fp8_linear` with scales of mixed size; magnitudes stay near one."""
    from kernels import fp8_linear as kernel
    from kernels.oracle import fp8_linear as oracle

    def make(rows: int, g: torch.Generator) -> Inputs:
        weight, scale = fp8(g, n, k)
        x = normal(g, rows, groups * k, dtype=dtype)
        return {"x": x, "weight": weight, "scale": scale, "groups": groups}

    exact = dtype == torch.float32
    return Operation(
        f"fp8_linear-{n}x{k}-g{groups}-{dtype}",
        kernel.multiply,
        oracle.multiply,
        make,
        rows=("x",),
        rtol=1e-5 if exact else BF16_RTOL,
        atol=1e-5 if exact else 1e-3,
        options=dict(options),
    )


def project(
    n8: int,
    n16: int,
    k: int,
    *,
    dtype: torch.dtype = torch.bfloat16,
    other: torch.dtype | None = None,
    **options: object,
) -> Operation:
    """`kernels.project`; no second weight for `n16` = 0, else one of `other` or `dtype`."""
    from kernels import project as kernel
    from kernels.oracle import project as oracle

    def make(rows: int, g: torch.Generator) -> Inputs:
        weight8, scale8 = fp8(g, n8, k)
        weight16 = normal(g, n16, k) * k**-0.5
        return {
            "x": normal(g, rows, k, dtype=dtype),
            "weight8": weight8,
            "scale8": scale8,
            "weight16": weight16.to(other or dtype) if n16 else None,
        }

    exact = dtype == torch.float32
    return Operation(
        f"project-{n8}+{n16}x{k}-{dtype}-{other}",
        kernel.project,
        oracle.project,
        make,
        rows=("x",),
        rtol=1e-5 if exact else BF16_RTOL,
        atol=1e-5 if exact else 1e-3,
        options=dict(options),
    )
