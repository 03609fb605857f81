"""Triton kernels of `sinkhorn`: one program balances a tile of m x m matrices in registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 64


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    logits, matrix, sums, n, eps, STEPS: tl.constexpr, M: tl.constexpr, TILE: tl.constexpr
):
    token = tl.program_id(0) * TILE + tl.arange(0, TILE)
    line = tl.arange(0, M)
    at = token[:, None, None] * (M * M) + line[None, :, None] * M + line[None, None, :]
    inside = (token < n)[:, None, None] & (line >= 0)[None, :, None] & (line >= 0)[None, None, :]
    c = tl.load(logits + at, mask=inside, other=0.0)
    c = tl.exp(c - tl.max(c, 2)[:, :, None])
    c = c / tl.sum(c, 2)[:, :, None] + eps
    slot = token[:, None] * M + line[None, :]
    keep = (token < n)[:, None] & (line >= 0)[None, :]
    total = tl.sum(c, 1) + eps
    c = c / total[:, None, :]
    tl.store(sums + slot, total, mask=keep)
    for step in range(1, STEPS, 2):
        total = tl.sum(c, 2) + eps
        c = c / total[:, :, None]
        tl.store(sums + step * n * M + slot, total, mask=keep)
        total = tl.sum(c, 1) + eps
        c = c / total[:, None, :]
        tl.store(sums + (step + 1) * n * M + slot, total, mask=keep)
    tl.store(matrix + at, c, mask=inside)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    grad, matrix, sums, out, n, eps, STEPS: tl.constexpr, M: tl.constexpr, TILE: tl.constexpr
):
    token = tl.program_id(0) * TILE + tl.arange(0, TILE)
    line = tl.arange(0, M)
    at = token[:, None, None] * (M * M) + line[None, :, None] * M + line[None, None, :]
    inside = (token < n)[:, None, None] & (line >= 0)[None, :, None] & (line >= 0)[None, None, :]
    c = tl.load(matrix + at, mask=inside, other=0.0)
    g = tl.load(grad + at, mask=inside, other=0.0)
    slot = token[:, None] * M + line[None, :]
    keep = (token < n)[:, None] & (line >= 0)[None, :]
    for back in range(0, STEPS - 1, 2):
        step = STEPS - 1 - back
        total = tl.load(sums + step * n * M + slot, mask=keep, other=1.0)
        g = (g - tl.sum(g * c, 1)[:, None, :]) / total[:, None, :]
        c = c * total[:, None, :]
        total = tl.load(sums + (step - 1) * n * M + slot, mask=keep, other=1.0)
        g = (g - tl.sum(g * c, 2)[:, :, None]) / total[:, :, None]
        c = c * total[:, :, None]
    total = tl.load(sums + slot, mask=keep, other=1.0)
    g = (g - tl.sum(g * c, 1)[:, None, :]) / total[:, None, :]
    c = c * total[:, None, :] - eps
    tl.store(out + at, c * (g - tl.sum(g * c, 2)[:, :, None]), mask=inside)


def forward(logits: Tensor, iterations: int, eps: float) -> tuple[Tensor, Tensor]:
    """Matrix [n, m, m] and sums [2 iterations - 1, n, m] of `logits`; m is a power of two."""
    logits = logits.contiguous()
    n, m, _ = logits.shape
    steps = 2 * iterations - 1
    matrix = torch.empty_like(logits)
    sums = logits.new_empty(steps, n, m)
    grid = (triton.cdiv(n, _TILE),)
    _forward[grid](logits, matrix, sums, n, eps, steps, m, _TILE)
    return matrix, sums


def backward(grad: Tensor, matrix: Tensor, sums: Tensor, iterations: int, eps: float) -> Tensor:
    """Gradient of the logits."""
    n, m, _ = matrix.shape
    out = torch.empty_like(matrix)
    steps = 2 * iterations - 1
    _backward[(triton.cdiv(n, _TILE),)](
        grad.contiguous(), matrix, sums, out, n, eps,
        steps, m, _TILE,
    )  # fmt: skip
    return out
