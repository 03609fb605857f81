"""What PyTorch itself offers for the dense products: the peer that is always at hand."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import linear

from kernels.bench import clock, shape
from kernels.bench.contest import SHARED, Entry, Missing

Calls = list[Callable[[], object]]


def entries(rows: int, repeats: int) -> Iterator[Entry | Missing]:
    """BF16 and FP8 products of every dense shape; FP8 wants its input quantised already."""
    for product in (*shape.LINEARS, *SHARED):
        for name, note, calls in (
            ("torch bf16", "twice the bytes", _bf16),
            ("torch _scaled_mm", "one scale a tensor: not this checkpoint's", _scaled),
        ):
            try:
                times = clock.times_us(calls(product, rows), repeats)
            except (RuntimeError, NotImplementedError, ValueError) as error:
                why = str(error).partition("\n")[0][:200]
                yield Missing(name, f"{product.name}, {rows} rows", why)
                continue
            yield Entry(product.name, rows, name, statistics.median(times), note)


def _bf16(product: shape.Linear, rows: int, device: str = "cuda") -> Calls:
    def one() -> Callable[[], Tensor]:
        g, n, k = product.groups, product.n // product.groups, product.k
        weight = torch.randn(g, n, k, device=device, dtype=torch.bfloat16)
        x = torch.randn(g, rows, k, device=device, dtype=torch.bfloat16)
        if g == 1:
            return partial(linear, x[0], weight[0])
        return partial(torch.bmm, x, weight.transpose(1, 2))

    return [one() for _ in range(clock.rotations(2 * product.n * product.k))]


def _scaled(product: shape.Linear, rows: int, device: str = "cuda") -> Calls:
    if product.groups > 1:
        raise NotImplementedError("there is no grouped product of this kind")
    scale = torch.ones((), device=device)

    def one() -> Callable[[], Tensor]:
        weight = torch.randn(product.n, product.k, device=device).to(torch.float8_e4m3fn)
        x = torch.randn(rows, product.k, device=device).to(torch.float8_e4m3fn)
        return partial(
            torch._scaled_mm, x, weight.t(), scale_a=scale, scale_b=scale,
            out_dtype=torch.bfloat16,
        )  # fmt: skip

    return [one() for _ in range(clock.rotations(product.weight_bytes))]
