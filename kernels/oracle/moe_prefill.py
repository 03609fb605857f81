"""Mixture of experts for many rows: what a step computes, whose routes need no order here."""

from __future__ import annotations

from torch import Tensor

from kernels.oracle import moe


def plan(chosen: Tensor, experts: int) -> None:
    """Nothing: plain PyTorch sorts no routes."""
    del chosen, experts


def gate_up(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    w13: Tensor,
    s13: Tensor,
    shared: Tensor,
    shared_scale: Tensor,
    *,
    limit: float,
    routes: None = None,
) -> Tensor:
    """`kernels.oracle.moe.gate_up`."""
    del routes
    return moe.gate_up(x, chosen, weights, w13, s13, shared, shared_scale, limit=limit)


def down(
    hidden: Tensor,
    chosen: Tensor,
    w2: Tensor,
    s2: Tensor,
    shared: Tensor,
    shared_scale: Tensor,
    *,
    routes: None = None,
) -> Tensor:
    """`kernels.oracle.moe.down`."""
    del routes
    return moe.down(hidden, chosen, w2, s2, shared, shared_scale)
