"""What is done to rows: norms, rotation, rounding, residual streams."""

from __future__ import annotations

from typing import Any

import torch
from gates import Inputs, Operation

from operations.draws import BF16_RTOL, normal


def rms_norm(*shape: int, weight: bool, dtype: torch.dtype = torch.bfloat16) -> Operation:
    """`kernels.norm.rms_norm` of rows [m, *shape]."""
    from kernels import norm as kernel
    from kernels.oracle import norm as oracle

    def make(rows: int, g: torch.Generator) -> Inputs:
        given = normal(g, shape[-1]).to(dtype) if weight else None
        return {"x": normal(g, rows, *shape, dtype=dtype) * 3, "weight": given, "eps": 1e-6}

    exact = dtype == torch.float32
    return Operation(
        f"rms_norm-{shape}-{weight}-{dtype}", kernel.rms_norm, oracle.rms_norm, make,
        rows=("x",), rtol=1e-5 if exact else BF16_RTOL, atol=1e-6,
    )  # fmt: skip


def rotate(
    heads: int, d: int, pairs: int, *, kind: str = "", dtype: torch.dtype = torch.bfloat16
) -> Operation:
    """`kernels.rotary`: plain, `inverse` or `normalised`."""
    from kernels import rotary as kernel
    from kernels.oracle import rotary as oracle

    def make(rows: int, g: torch.Generator) -> Inputs:
        angles = torch.rand(rows, 1, pairs, generator=g) * 7
        given: Inputs = {"x": normal(g, rows, heads, d, dtype=dtype) * 2}
        given |= {"cos": angles.cos(), "sin": angles.sin()}
        if kind == "normalised":
            return given | {"eps": 1e-6}
        return given | {"inverse": kind == "inverse"}

    exact = dtype == torch.float32
    name = "rotate_normalised" if kind == "normalised" else "rotate"
    return Operation(
        f"{name}-{heads}x{d}-{pairs}-{kind}-{dtype}",
        getattr(kernel, name),
        getattr(oracle, name),
        make,
        rows=("x", "cos", "sin"),
        rtol=1e-5 if exact else BF16_RTOL,
        atol=1e-5 if exact else 2e-2,  # the sum of two rounded BF16 numbers may cancel
    )


def rounding(
    name: str, *shape: int, dtype: torch.dtype = torch.bfloat16, **arguments: int
) -> Operation:
    """A round trip of `kernels.rounding`: exact, as every result is on the format's grid.

    Before a Hadamard transform the values are small whole numbers, so that its sums are exact and
    no value is near the middle of two codes.
    """
    from kernels import rounding as kernel
    from kernels.oracle import rounding as oracle

    argument = "row" if name == "cache_round" else "x"

    def make(rows: int, g: torch.Generator) -> Inputs:
        if name == "hadamard_fp4":
            x = torch.randint(-9, 10, (rows, *shape), generator=g).to(dtype)
        else:
            spread = torch.exp2(torch.randint(-12, 12, (rows, *shape), generator=g).float())
            x = (normal(g, rows, *shape) * spread).to(dtype)
        return {argument: x, **arguments}

    return Operation(
        f"{name}-{shape}-{arguments}-{dtype}", getattr(kernel, name), getattr(oracle, name), make,
        rows=(argument,), rtol=1e-6, atol=0.0,
    )  # fmt: skip


def hyper(
    name: str,
    m: int,
    d: int,
    *,
    dtype: torch.dtype = torch.bfloat16,
    iterations: int = 20,
    parts: int = 0,
    **options: object,
) -> Operation:
    """`enter`, `advance` or `finish` of `kernels.hyper`; with `parts`, of a sum and with taps."""
    from kernels import hyper as kernel
    from kernels.launch import interpreted
    from kernels.oracle import hyper as oracle

    last = name == "finish"

    def make(rows: int, g: torch.Generator) -> Inputs:
        lines = m if last else (2 + m) * m
        given: Inputs = {"streams": normal(g, rows, m, d, dtype=dtype)}
        if name != "enter":
            given["output"] = normal(g, rows, d, dtype=dtype)
            if parts:
                given["output"] = normal(g, rows, parts, d) * parts**-0.5
            given["post"] = torch.rand(rows, m, generator=g) * 2
            given["comb"] = oracle.sinkhorn(normal(g, rows, m, m), 20, 1e-6)
        given["fn"] = normal(g, lines, m * d) * (m * d) ** -0.5
        given["base"] = normal(g, lines) * 0.5
        given["scale"] = torch.rand(1 if last else 3, generator=g) + 0.5
        given["norm"] = normal(g, d).to(dtype)
        given |= {"norm_eps": 1e-6, "eps": 1e-6}
        return given if last else given | {"iterations": iterations}

    exact = dtype == torch.float32
    return Operation(
        f"{name}-{m}x{d}-{parts}-{dtype}",
        with_taps(getattr(kernel, name)) if parts else getattr(kernel, name),
        with_taps(getattr(oracle, name)) if parts else getattr(oracle, name),
        make,
        rows=("streams", "output", "post", "comb"),
        rtol=1e-4 if exact else 2 * BF16_RTOL,
        # The input is a sum of rounded streams, which may cancel; the interpreter cuts bits off.
        atol=1e-5 if exact else 4e-2 if interpreted() else 2e-2,
        options=dict(options),
        widen=False,
    )


def with_taps(function: Any) -> Any:
    """`function`, and the taps that it wrote into the middle of rows of a wider buffer."""

    def call(**given: Any) -> Any:
        rows, _, d = given["streams"].shape
        wide = given["streams"].new_full((rows, 3 * d), 7.0)
        found = function(**given, taps=wide[:, d : 2 * d])
        return found, wide

    return call
