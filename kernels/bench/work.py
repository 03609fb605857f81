"""The calls that are timed, on random operands of the real shapes, made on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import fp8_linear, hyper, moe, norm, rotary, rounding, router
from kernels.bench import shape
from kernels.bench.clock import rotations

_ROUTINGS = 32
_BANKS = 2  # one bank of 160 experts is 2.1 GB: far more than any cache


@dataclass(frozen=True, slots=True)
class Work:
    """Calls over different operands; `weight_bytes` is what one of them must read on average."""

    name: str
    rows: int
    weight_bytes: float
    calls: list[Callable[[], object]]


def every(rows: int) -> Iterator[Work]:
    """All that is timed for a step of `rows` rows, one at a time: each frees its memory."""
    for linear in shape.LINEARS:
        yield _linear(linear, rows)
    yield from _experts(rows)
    yield _hyper(rows)
    yield from _rows(rows)


def _bf16(*size: int) -> Tensor:
    return torch.randn(size, device="cuda", dtype=torch.bfloat16)


def _codes(*size: int) -> Tensor:
    """Random bytes."""
    return torch.randint(256, size, device="cuda", dtype=torch.uint8)


def _e4m3(*size: int) -> Tensor:
    """Every E4M3 code but the two of NaN."""
    codes = _codes(*size)
    codes[(codes & 127) == 127] = 0
    return codes.view(torch.float8_e4m3fn)


def _e8m0(*size: int) -> Tensor:
    """Scales from 2 ** -9 to 2 ** -6."""
    return torch.randint(118, 122, size, device="cuda", dtype=torch.uint8).view(
        torch.float8_e8m0fnu
    )


def _linear(linear: shape.Linear, rows: int) -> Work:
    n, k, groups = linear.n, linear.k, linear.groups

    def one() -> Callable[[], object]:
        x, weight = _bf16(rows, groups * k), _e4m3(n, k)
        scale = _e8m0(-(-n // 128), -(-k // 128))
        return lambda: fp8_linear.multiply(x, weight, scale, groups=groups)

    calls = [one() for _ in range(rotations(linear.weight_bytes))]
    return Work(linear.name, rows, linear.weight_bytes, calls)


def _experts(rows: int) -> Iterator[Work]:
    e, d, i = shape.EXPERTS, shape.HIDDEN, shape.INNER
    banks = [
        (_codes(e, 2 * i, d // 2), _e8m0(e, 2 * i, d // 32), _codes(e, d, i // 2),
         _e8m0(e, d, i // 32)) for _ in range(_BANKS)
    ]  # fmt: skip
    gate_up, down, chain = [], [], []
    distinct = 0
    for routing in range(_ROUTINGS):
        w13, s13, w2, s2 = banks[routing % _BANKS]
        chosen = torch.rand(rows, e, device="cuda").argsort(-1)[:, : shape.CHOSEN].contiguous()
        distinct += chosen.unique().numel()
        weights = torch.rand(rows, shape.CHOSEN, device="cuda")
        x, hidden, shared = _bf16(rows, d), _bf16(rows, shape.CHOSEN, i), _bf16(rows, d)

        def enter(
            x: Tensor = x, c: Tensor = chosen, w: Tensor = weights, w13: Tensor = w13,
            s13: Tensor = s13,
        ) -> Tensor:  # fmt: skip
            return moe.gate_up(x, c, w, w13, s13, limit=10.0)

        def leave(
            h: Tensor = hidden, c: Tensor = chosen, w2: Tensor = w2, s2: Tensor = s2
        ) -> Tensor:
            return moe.down(h, c, w2, s2)

        def whole(
            enter: Callable[..., Tensor] = enter,
            leave: Callable[..., Tensor] = leave,
            shared: Tensor = shared,
        ) -> Tensor:
            return moe.total(leave(enter()), shared, torch.bfloat16)

        gate_up.append(enter)
        down.append(leave)
        chain.append(whole)
    visited = distinct / _ROUTINGS
    yield Work("experts gate_up", rows, visited * shape.GATE_UP_BYTES, list(gate_up))
    yield Work("experts down", rows, visited * shape.DOWN_BYTES, list(down))
    yield Work("experts chain", rows, visited * shape.EXPERT_BYTES, list(chain))


def _hyper(rows: int) -> Work:
    m, d = shape.STREAMS, shape.HIDDEN
    lines = (2 + m) * m

    def one() -> Callable[[], object]:
        streams, output, weight = _bf16(rows, m, d), _bf16(rows, d), _bf16(d)
        post, comb = torch.rand(rows, m, device="cuda"), torch.rand(rows, m, m, device="cuda") / m
        fn = torch.randn(lines, m * d, device="cuda") * (m * d) ** -0.5
        base, scale = torch.randn(lines, device="cuda"), torch.ones(3, device="cuda")
        return lambda: hyper.advance(
            streams, output, post, comb, fn, base, scale, weight,
            iterations=20, norm_eps=1e-6, eps=1e-6,
        )  # fmt: skip

    needed = shape.hyper_bytes(rows)
    return Work("hyper advance", rows, needed, [one() for _ in range(rotations(needed))])


def _rows(rows: int) -> Iterator[Work]:
    """The small ones, whose bytes are nothing and whose launches are all."""
    heads, head, pairs = shape.HEADS, shape.HEAD, shape.ROTARY // 2
    x, weight, queries, row = (
        _bf16(rows, 1024),
        _bf16(1024),
        _bf16(rows, heads, head),
        _bf16(rows, head),
    )
    index = _bf16(rows, heads, 128)
    cos, sin = torch.randn(2, rows, 1, pairs, device="cuda")
    logits, bias = (
        torch.randn(rows, shape.EXPERTS, device="cuda"),
        torch.randn(shape.EXPERTS, device="cuda"),
    )
    small: dict[str, Callable[[], object]] = {
        "norm 1024": lambda: norm.rms_norm(x, weight, 1e-6),
        "head norm + rotary": lambda: rotary.rotate_normalised(queries, cos, sin, 1e-6),
        "cache rounding": lambda: rounding.cache_round(row, shape.ROTARY),
        "index rounding": lambda: rounding.hadamard_fp4(index),
        "router": lambda: router.choose(logits, bias, shape.CHOSEN, scale=1.5),
    }
    for name, call in small.items():
        yield Work(name, rows, 0.0, [call] * 32)
