"""Queries of a step's heads, and the compressed rows of the windows that the step completes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.oracle import compressor, packed
from kernels.oracle.intake import row
from kernels.oracle.rotary import rotate, rotate_normalised
from kernels.oracle.rounding import hadamard_fp4
from kernels.pool import Pool


class Queries(NamedTuple):
    """What a step's rows ask: of the window and compressed rows, and of the index."""

    main: Tensor  # [m, heads, head_dim]
    indexer: Tensor | None  # [m, index_heads, index_dim]


def prepare(
    y: Tensor,
    cos: Tensor,
    sin: Tensor,
    position: Tensor,
    pools: Sequence[Pool] = (),
    *,
    heads: int,
    head_dim: int,
    index_dim: int = 0,
    eps: float,
    rounds: bool,
) -> Queries:
    """Queries of `y`, and a row for every window that ends within the step, in `pools`' `rows`.

    `y` [m, heads head_dim + index_heads index_dim], BF16 or float32, as projected. `cos`, `sin`
    float32 [context, pairs] by position. Row r is at `position` [1] (int64) + r, and the inputs of
    `pools` hold all of the step's rows already.

    Heads are scaled to unit mean square, cast, rotated. Heads of the index (`index_dim` > 0) are
    rotated and, where `rounds`, go through `hadamard_fp4`. The first of `pools` makes key/value
    rows, the second index keys; float32 until stored.
    """
    m = y.shape[0]
    at = position + torch.arange(m, device=y.device)
    c, s = cos[at][:, None], sin[at][:, None]
    main = rotate_normalised(y[:, : heads * head_dim].unflatten(-1, (heads, head_dim)), c, s, eps)
    indexer = None
    if index_dim:
        indexer = rotate(y[:, heads * head_dim :].unflatten(-1, (-1, index_dim)), c, s)
        indexer = hadamard_fp4(indexer) if rounds else indexer
    for pool, keys in zip(pools, (False, True), strict=False):
        _complete(pool, int(position), m, cos, sin, keys=keys, eps=eps, rounds=rounds)
    return Queries(main, indexer)


def _complete(
    pool: Pool, start: int, count: int, cos: Tensor, sin: Tensor, *, keys: bool, eps: float,
    rounds: bool,
) -> None:  # fmt: skip
    """Make the rows of the windows that end at a position from `start`, `count` positions on."""
    slots = pool.inputs.shape[0]
    for w in range(start // pool.ratio, (start + count) // pool.ratio):
        at = torch.arange((w + 1) * pool.ratio - pool.span, (w + 1) * pool.ratio)
        held = pool.inputs[at.to(pool.inputs.device) % slots]
        row = pooled(held, pool, w, cos, sin, keys=keys, eps=eps, rounds=rounds)
        packed.put(pool.rows, w, row)


def pooled(
    held: Tensor, pool: Pool, w: int, cos: Tensor, sin: Tensor, *, keys: bool, eps: float,
    rounds: bool,
) -> Tensor:  # fmt: skip
    """Float32 row [d] of window `w`, of the inputs `held` [span, 2 width] of its positions.

    Window 0 has no predecessor; what `held` says of it counts for nothing.
    """
    values, gates = held.unflatten(0, (-1, pool.ratio)).chunk(2, -1)
    if pool.overlapping:
        if w == 0:
            before = (torch.arange(2, device=held.device) == 0)[:, None, None]
            values = values.masked_fill(before, 0.0)
            gates = gates.masked_fill(before, -torch.inf)
        values, gates = compressor.overlap(values), compressor.overlap(gates)
    sums = compressor.pool(values, gates)[0]
    c, s = cos[w * pool.ratio], sin[w * pool.ratio]
    made = row(sums, pool.norm, c, s, eps=eps, rounds=rounds and not keys)
    return hadamard_fp4(made) if keys and rounds else made
