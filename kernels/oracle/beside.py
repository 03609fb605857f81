"""The router's choice and the shared expert's first product, which need not wait for each other."""

from __future__ import annotations

from torch import Tensor

from kernels.oracle import moe, router


def route(
    x: Tensor,
    gate: Tensor,
    bias: Tensor | None,
    tokens: Tensor | None,
    table: Tensor | None,
    shared: Tensor,
    shared_scale: Tensor,
    *,
    count: int,
    scale: float,
    limit: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Experts and weights as `router.route`, rows [m, count + 1, i] as `moe.begin` leaves them."""
    chosen, weights = router.route(x, gate, bias, tokens, table, count=count, scale=scale)
    return chosen, weights, moe.begin(x, shared, shared_scale, slots=count, limit=limit)
