"""Random operands: numbers, weights in the native formats, choices and lists."""

from __future__ import annotations

import math

import torch
from torch import Tensor

BF16_RTOL = 2.0**-7  # one rounding to BF16, and room for a neighbour


def normal(g: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(shape, generator=g).to(dtype)


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


def choice(g: torch.Generator, rows: int, slots: int, experts: int) -> Tensor:
    """Different experts for each row."""
    return torch.rand(rows, experts, generator=g).argsort(-1)[:, :slots].contiguous()


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
