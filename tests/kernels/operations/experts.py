"""The MXFP4 experts and the routes to them."""

from __future__ import annotations

from typing import Any

import torch
from gates import Inputs, Operation
from torch import Tensor

from operations.draws import BF16_RTOL, choice, fp8, mxfp4, normal


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
        bank = banked("w13", *mxfp4(g, experts, 2 * inner, d))
        shared, shared_scale = fp8(g, 2 * inner, d)
        chosen = choice(g, rows, slots, experts)
        if repeat:
            chosen[:, -1] = chosen[:, 0]
        weights = torch.rand(rows, slots, generator=g) + 0.1
        x = normal(g, rows, d, dtype=dtype)
        given: Inputs = {"x": x, "chosen": chosen, "weights": weights} | bank
        return given | {"shared": shared, "shared_scale": shared_scale, "limit": 1.5}

    exact = dtype == torch.float32
    return Operation(
        f"gate_up-{experts}x{inner}x{d}-{slots}-{dtype}",
        with_bank(kernel or moe.gate_up, "w13"),
        without_bank(oracle.gate_up, "w13", "s13"),
        make,
        rows=("x", "chosen", "weights"),
        rtol=1e-4 if exact else BF16_RTOL,
        atol=1e-5 if exact else 1e-2,
        options=dict(options),
    )


def in_two(**given: Any) -> Tensor:
    """`kernels.moe.gate_up` on rows that `kernels.moe.begin` has begun."""
    from kernels import moe

    shared = {name: given[name] for name in ("x", "shared", "shared_scale", "limit")}
    more = {"tile": given["tile"]} if "tile" in given else {}
    begun = moe.begin(**shared, **more, slots=given["chosen"].shape[1])
    return moe.gate_up(**given, begun=begun)


def beside(
    experts: int,
    d: int,
    inner: int,
    count: int,
    *,
    vocabulary: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    **options: object,
) -> Operation:
    """`kernels.beside.route`, without the slots that `gate_up` fills."""
    from kernels import beside as kernel
    from kernels.oracle import beside as oracle

    routing = route(experts, d, count, vocabulary=vocabulary, dtype=dtype)

    def make(rows: int, g: torch.Generator) -> Inputs:
        shared, shared_scale = fp8(g, 2 * inner, d)
        given = {"shared": shared, "shared_scale": shared_scale, "limit": 1.5}
        return routing.make(rows, g) | given

    def begun(function: Any) -> Any:
        def call(**given: Any) -> tuple[Tensor, ...]:
            chosen, weights, hidden = function(**given)
            return chosen, weights, hidden[:, -1]

        return call

    exact = dtype == torch.float32
    return Operation(
        f"beside-{routing.name}-{inner}",
        begun(kernel.route),
        begun(oracle.route),
        make,
        rows=("x", "tokens"),
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
        bank = banked("w2", *mxfp4(g, experts, d, inner))
        shared, shared_scale = fp8(g, d, inner)
        chosen = choice(g, rows, slots, experts)
        if repeat:
            chosen[:, -1] = chosen[:, 0]
        hidden = normal(g, rows, slots + 1, inner, dtype=dtype)
        given: Inputs = {"hidden": hidden, "chosen": chosen} | bank
        return given | {"shared": shared, "shared_scale": shared_scale}

    return Operation(
        f"down-{experts}x{d}x{inner}-{slots}-{dtype}",
        with_bank(kernel or moe.down, "w2"),
        without_bank(oracle.down, "w2", "s2"),
        make,
        rows=("hidden", "chosen"),
        rtol=1e-4,
        atol=1e-4,
        options=dict(options),
    )


def banked(name: str, codes: Tensor, scale: Tensor) -> Inputs:
    """The tensors of a bank as inputs of their own, and beside them what the oracle reads."""
    from kernels import mxfp4
    from kernels.launch import interpreted

    on_host = interpreted() or not torch.cuda.is_available()
    device = "cpu" if on_host else "cuda"
    bank = mxfp4.pack(codes.to(device), scale.to(device))
    return {f"{name}_codes": bank.codes, f"{name}_scales": bank.scales, name: (codes, scale)}


def with_bank(kernel: Any, name: str) -> Any:
    """`kernel` for inputs in which a bank is `banked` under `name`."""
    from kernels import mxfp4

    def call(**given: Any) -> Any:
        plain, _ = given.pop(name)
        codes, scales = given.pop(f"{name}_codes"), given.pop(f"{name}_scales")
        bank = mxfp4.Bank(codes, scales, plain.shape[1], 2 * plain.shape[2])
        return kernel(**given, **{name: bank})

    return call


def without_bank(oracle: Any, name: str, scale: str) -> Any:
    """`oracle`, which takes the matrix `name` and its `scale` instead of a bank."""

    def call(**given: Any) -> Any:
        device = given.pop(f"{name}_codes").device
        given.pop(f"{name}_scales")
        matrix, scales = (tensor.to(device) for tensor in given.pop(name))
        return oracle(**given, **{name: matrix, scale: scales})

    return call


def choose(experts: int, count: int) -> Operation:
    """`kernels.router.choose`."""
    from kernels import router as kernel
    from kernels.oracle import router as oracle

    def make(rows: int, g: torch.Generator) -> Inputs:
        bias = normal(g, experts) * 0.2
        return {"logits": normal(g, rows, experts) * 3, "bias": bias, "count": count, "scale": 1.5}

    return Operation(
        f"choose-{count}-of-{experts}", kernel.choose, oracle.choose, make,
        rows=("logits",), rtol=1e-5, atol=1e-7,
    )  # fmt: skip


def look_up(experts: int, count: int, vocabulary: int) -> Operation:
    """`kernels.router.look_up`."""
    from kernels import router as kernel
    from kernels.oracle import router as oracle

    def make(rows: int, g: torch.Generator) -> Inputs:
        return {
            "logits": normal(g, rows, experts) * 3,
            "tokens": torch.randint(vocabulary, (rows,), generator=g),
            "table": choice(g, vocabulary, count, experts),
            "scale": 1.5,
        }

    return Operation(
        f"look_up-{count}-of-{experts}", kernel.look_up, oracle.look_up, make,
        rows=("logits", "tokens"), rtol=1e-5, atol=1e-7,
    )  # fmt: skip


def route(
    experts: int,
    d: int,
    count: int,
    *,
    vocabulary: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    gate: torch.dtype | None = None,
    **options: object,
) -> Operation:
    """`kernels.router.route` by bias, or by a table for a `vocabulary`."""
    from kernels import router as kernel
    from kernels.oracle import router as oracle

    def make(rows: int, g: torch.Generator) -> Inputs:
        weight = (normal(g, experts, d) * 3 * d**-0.5).to(gate or dtype)
        given: Inputs = {"x": normal(g, rows, d, dtype=dtype), "gate": weight}
        given |= {"bias": None, "tokens": None, "table": None, "count": count, "scale": 1.5}
        if vocabulary:
            given["tokens"] = torch.randint(vocabulary, (rows,), generator=g)
            given["table"] = choice(g, vocabulary, count, experts)
        else:
            given["bias"] = normal(g, experts) * 0.2
        return given

    kind = "table" if vocabulary else "bias"
    return Operation(
        f"route-{count}-of-{experts}x{d}-{kind}-{dtype}", kernel.route, oracle.route, make,
        rows=("x", "tokens"), rtol=1e-4, atol=1e-6, options=dict(options),
    )  # fmt: skip
