"""Every kernel as an `Operation`, at any size: small under the interpreter, real on a GPU."""

from __future__ import annotations

import math
from typing import Any

import torch
from gates import Inputs, Operation
from torch import Tensor

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


def choice(g: torch.Generator, rows: int, slots: int, experts: int) -> Tensor:
    """Different experts for each row."""
    return torch.rand(rows, experts, generator=g).argsort(-1)[:, :slots].contiguous()


def fp8(g: torch.Generator, n: int, k: int) -> tuple[Tensor, Tensor]:
    """A weight of every E4M3 code but NaN, whose products with normal rows stay near one."""
    codes = torch.randint(256, (n, k), generator=g, dtype=torch.uint8)
    codes[(codes & 127) == 127] = 0
    return codes.view(torch.float8_e4m3fn), scales(g, 117.0, k, -(-n // 128), -(-k // 128))


def mxfp4(g: torch.Generator, *shape: int) -> tuple[Tensor, Tensor]:
    """Matrices of every E2M1 code, whose products with normal rows stay near one."""
    packed = torch.randint(256, (*shape[:-1], shape[-1] // 2), generator=g, dtype=torch.uint8)
    return packed.view(torch.int8), scales(g, 2.9, shape[-1], *shape[:-1], shape[-1] // 32)


def scales(g: torch.Generator, size: float, k: int, *shape: int) -> Tensor:
    """E8M0 scales around those that bring sums of `k` weights of `size` to one."""
    middle = 127 - round(math.log2(size * max(k, 1) ** 0.5))
    exponents = torch.randint(middle - 2, middle + 2, shape, generator=g, dtype=torch.uint8)
    return exponents.view(torch.float8_e8m0fnu)


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

    device = "cuda" if torch.cuda.is_available() else "cpu"
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


def lm_head(
    v: int,
    d: int,
    *,
    dtype: torch.dtype = torch.bfloat16,
    head: torch.dtype | None = None,
    **options: object,
) -> Operation:
    """`kernels.lm_head.scores`."""
    from kernels import lm_head as kernel
    from kernels.oracle import lm_head as oracle

    def make(rows: int, g: torch.Generator) -> Inputs:
        weight = (normal(g, v, d) * d**-0.5).to(head or dtype)
        return {"x": normal(g, rows, d, dtype=dtype), "head": weight}

    return Operation(
        f"lm_head-{v}x{d}-{dtype}", kernel.scores, oracle.scores, make,
        rows=("x",), rtol=1e-5, atol=2e-5, options=dict(options),
    )  # fmt: skip


def markov(
    v: int, rank: int, d: int, *, dtype: torch.dtype = torch.bfloat16, **options: object
) -> Operation:
    """`kernels.markov.step`, of one slot whatever the number of rows."""
    from kernels import markov as kernel
    from kernels.oracle import markov as oracle

    def make(rows: int, g: torch.Generator) -> Inputs:
        return {
            "base": normal(g, v),
            "previous": torch.randint(v, (1,), generator=g),
            "hidden": normal(g, d, dtype=dtype),
            "w1": normal(g, v, rank, dtype=dtype),
            "w2": (normal(g, v, rank) * rank**-0.5).to(dtype),
            "confidence": (normal(g, 1, d + rank) * (d + rank) ** -0.5).to(dtype),
        }

    return Operation(
        f"markov-{v}x{rank}-{d}-{dtype}", kernel.step, oracle.step, make,
        rows=(), rtol=1e-5, atol=2e-5, options=dict(options),
    )  # fmt: skip


def pick(v: int, *, temperature: float, **options: object) -> Operation:
    """`kernels.sample.pick`; the first row draws the token at 7 + 1."""
    from kernels import sample as kernel
    from kernels.oracle import sample as oracle

    def make(rows: int, g: torch.Generator) -> Inputs:
        return {
            "scores": normal(g, rows, v) * 3,
            "position": torch.tensor([7]),
            "seed": torch.randint(-(2**62), 2**62, (1,), generator=g),
            "temperature": torch.tensor([temperature]),
        }

    return Operation(
        f"pick-{v}-{temperature}", kernel.pick, oracle.pick, make,
        rows=("scores",), rtol=0, atol=0, options=dict(options),
    )  # fmt: skip


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


def table(positions: int, pairs: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of a rotation, float32 [positions, pairs]."""
    from kernels.oracle import rotary

    return rotary.table(torch.arange(positions), rotary.frequencies(2 * pairs, 10000.0))


def lists(g: torch.Generator, rows: int, start: int, ratio: int, count: int) -> Tensor:
    """What an indexer may choose: int32 [rows, count], ascending, -1 after the last."""
    chosen = torch.full((rows, count), -1, dtype=torch.int32)
    for row in range(rows):
        visible = (start + row + 1) // ratio
        some = torch.randperm(visible, generator=g)[:count].sort().values
        chosen[row, : some.numel()] = some.to(torch.int32)
    return chosen


def attend(
    heads: int,
    d: int,
    pairs: int,
    window: int,
    start: int,
    *,
    kind: str,
    capacity: int = 0,
    ratio: int = 0,
    count: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    **options: object,
) -> Operation:
    """`kernels.attention`: `attend`, `attend_long` or `attend_block` (`kind`), from `start`.

    Compressed rows where `capacity` is not zero, of which `count` are listed where that is not;
    what no row may see is NaN.
    """
    from kernels import attention as kernel
    from kernels.oracle import attention as oracle

    def make(rows: int, g: torch.Generator) -> Inputs:
        cos, sin = table(start + rows + 1, pairs)
        given: Inputs = {"queries": normal(g, rows, heads, d, dtype=dtype)}
        if kind == "attend_block":
            ring = normal(g, window, d, dtype=dtype)
            ring[start:] = torch.nan
            given |= {"ring": ring, "block": normal(g, rows, d, dtype=dtype)}
        elif kind == "attend_long":
            kv = normal(g, window - 1 + rows, d, dtype=dtype)
            kv[: max(0, window - 1 - start)] = torch.nan
            given["kv"] = kv
        else:
            ring = normal(g, window + 8, d, dtype=dtype)
            ring[start + max(rows, 1) :] = torch.nan
            given["ring"] = ring
        given |= {"sink": normal(g, heads), "cos": cos, "sin": sin}
        at = torch.tensor([start])
        if kind == "attend_block":
            return given | {"length": at, "scale": d**-0.5}
        far = normal(g, capacity, d, dtype=dtype) if capacity else None
        if far is not None:
            far[(start + rows) // ratio :] = torch.nan
        chosen = lists(g, rows, start, ratio, count) if count else None
        given |= {"rows": far, "indices": chosen, "position": at}
        return given | {"window": window, "ratio": ratio, "scale": d**-0.5}

    exact = dtype == torch.float32
    return Operation(
        f"{kind}-{heads}x{d}-{window}-at{start}-{capacity}:{ratio}:{count}-{dtype}",
        getattr(kernel, kind),
        getattr(oracle, kind),
        make,
        rows=("queries", "indices"),
        rtol=1e-5 if exact else BF16_RTOL,
        atol=1e-5 if exact else 2e-3,
        options=dict(options),
        start="position",
    )


def choose_rows(
    heads: int,
    d: int,
    capacity: int,
    start: int,
    *,
    ratio: int = 4,
    count: int = 16,
    dtype: torch.dtype = torch.bfloat16,
    **options: object,
) -> Operation:
    """`kernels.indexer.choose` on small whole numbers: exact sums, and many scores are equal.

    Keys that no row sees are NaN.
    """
    from kernels import indexer as kernel
    from kernels.oracle import indexer as oracle

    def make(rows: int, g: torch.Generator) -> Inputs:
        keys = torch.randint(-2, 3, (capacity, d), generator=g).to(dtype)
        keys[(start + max(rows, 1)) // ratio :] = torch.nan
        queries = torch.randint(-2, 3, (rows, heads, d), generator=g).to(dtype)
        weights = torch.randint(-4, 5, (rows, heads), generator=g) * 0.25
        given: Inputs = {"queries": queries, "keys": keys, "weights": weights}
        return given | {"position": torch.tensor([start]), "ratio": ratio, "count": count}

    return Operation(
        f"choose-{count}-of-{capacity}x{heads}x{d}-at{start}:{ratio}-{dtype}",
        kernel.choose,
        oracle.choose,
        make,
        rows=("queries", "weights"),
        rtol=0.0,
        atol=0.0,
        options=dict(options),
        start="position",
    )


def with_taps(function: Any) -> Any:
    """`function`, and the taps that it wrote into the middle of rows of a wider buffer."""

    def call(**given: Any) -> Any:
        rows, _, d = given["streams"].shape
        wide = torch.full((rows, 3 * d), 7.0).to(given["streams"])
        found = function(**given, taps=wide[:, d : 2 * d])
        return found, wide

    return call
