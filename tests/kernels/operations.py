"""Every kernel as an `Operation`, at any size: small under the interpreter, real on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from gates import Inputs, Operation
from torch import Tensor

from engine.formats import encode_fp8, encode_mxfp4

BF16_RTOL = 2.0**-7  # one rounding to BF16, and room for a neighbour


def normal(g: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(shape, generator=g).to(dtype)


def fp8_linear(
    n: int, k: int, *, groups: int = 1, dtype: torch.dtype = torch.bfloat16, **options: object
) -> Operation:
    """`kernels.fp8_linear` with scales of mixed size; magnitudes stay near one."""
    from kernels import fp8_linear as kernel
    from kernels.oracle import fp8_linear as oracle

    def make(rows: int, g: torch.Generator) -> Inputs:
        uneven = torch.exp2(torch.randint(-2, 3, (n, 1), generator=g).float())
        weight, scale = encode_fp8(normal(g, n, k) * uneven * max(k, 1) ** -0.5)
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


def choice(g: torch.Generator, rows: int, slots: int, experts: int) -> Tensor:
    """Different experts for each row."""
    return torch.rand(rows, experts, generator=g).argsort(-1)[:, :slots].contiguous()


def mxfp4(g: torch.Generator, *shape: int) -> tuple[Tensor, Tensor]:
    """Random matrices whose products with normal rows stay near one."""
    uneven = torch.exp2(torch.randint(-2, 3, (*shape[:-1], 1), generator=g).float())
    return encode_mxfp4(normal(g, *shape) * uneven * shape[-1] ** -0.5)


def gate_up(
    experts: int,
    d: int,
    inner: int,
    slots: int,
    *,
    dtype: torch.dtype = torch.bfloat16,
    repeat: bool = False,
    kernel: Any = None,
    **options: object,
) -> Operation:
    """`kernels.moe.gate_up`, or its form for sorted rows, with a limit that often bites."""
    from kernels import moe
    from kernels.oracle import moe as oracle

    def make(rows: int, g: torch.Generator) -> Inputs:
        w13, s13 = mxfp4(g, experts, 2 * inner, d)
        chosen = choice(g, rows, slots, experts)
        if repeat:
            chosen[:, -1] = chosen[:, 0]
        weights = torch.rand(rows, slots, generator=g) + 0.1
        x = normal(g, rows, d, dtype=dtype)
        given: Inputs = {"x": x, "chosen": chosen, "weights": weights, "w13": w13, "s13": s13}
        return given | {"limit": 1.5}

    exact = dtype == torch.float32
    return Operation(
        f"gate_up-{experts}x{inner}x{d}-{slots}-{dtype}",
        kernel or moe.gate_up,
        oracle.gate_up,
        make,
        rows=("x", "chosen", "weights"),
        rtol=1e-4 if exact else BF16_RTOL,
        atol=1e-5 if exact else 1e-2,
        options=dict(options),
    )


def down(
    experts: int,
    d: int,
    inner: int,
    slots: int,
    *,
    dtype: torch.dtype = torch.bfloat16,
    repeat: bool = False,
    kernel: Any = None,
    **options: object,
) -> Operation:
    """`kernels.moe.down`, or its form for sorted rows."""
    from kernels import moe
    from kernels.oracle import moe as oracle

    def make(rows: int, g: torch.Generator) -> Inputs:
        w2, s2 = mxfp4(g, experts, d, inner)
        chosen = choice(g, rows, slots, experts)
        if repeat:
            chosen[:, -1] = chosen[:, 0]
        hidden = normal(g, rows, slots, inner, dtype=dtype)
        return {"hidden": hidden, "chosen": chosen, "w2": w2, "s2": s2}

    return Operation(
        f"down-{experts}x{d}x{inner}-{slots}-{dtype}",
        kernel or moe.down,
        oracle.down,
        make,
        rows=("hidden", "chosen"),
        rtol=1e-4,
        atol=1e-4,
        options=dict(options),
    )


def total(d: int, slots: int, *, shared: bool, dtype: torch.dtype = torch.bfloat16) -> Operation:
    """`kernels.moe.total`."""
    from kernels import moe
    from kernels.oracle import moe as oracle

    def make(rows: int, g: torch.Generator) -> Inputs:
        parts = normal(g, rows, slots, d)
        other = normal(g, rows, d, dtype=dtype) if shared else None
        return {"parts": parts, "shared": other, "dtype": dtype}

    exact = dtype == torch.float32
    return Operation(
        f"total-{d}-{slots}-{dtype}",
        moe.total,
        oracle.total,
        make,
        rows=("parts", "shared"),
        rtol=1e-5 if exact else BF16_RTOL,
        atol=1e-5 if exact else 1e-2,
    )
