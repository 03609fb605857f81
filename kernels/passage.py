"""A chunk of a prompt: what many steps would leave in a layer's rings and compressed rows, at once.

The chunk is longer than the rings, so its windows are pooled from its own inputs and the ring's
past before the rings are written.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from kernels import intake
from kernels.compressor import POSITIONS, complete, ports, shapes, take
from kernels.intake import require_inputs
from kernels.launch import require, require_activation, require_apart, require_contiguous
from kernels.packed import tensors
from kernels.pool import Pool

_CHANNELS = 1024  # of a program that fills rings
_WARPS = 4


def store(
    y8: Tensor,
    y16: Tensor | None,
    q_norm: Tensor,
    kv_norm: Tensor,
    cos: Tensor,
    sin: Tensor,
    position: Tensor,
    window: Tensor,
    pools: Sequence[Pool] = (),
    *,
    reach: int,
    eps: float,
    rounds: bool,
) -> tuple[Tensor, Tensor]:
    """Latents [m, q_rank], and the keys [reach + m, head_dim] that the chunk's queries see.

    Arguments as in `intake.store`, and any number of rows. The keys, of `window`'s dtype, are the
    rows of the `reach` positions before the chunk (zeros before position 0), then the chunk's own.
    Rings and compressed rows are left as one step after another would leave them, so what
    `heads.prepare` does for `pools` is done here. Raises ValueError for operands that do not fit.
    """
    m, d, pairs = y8.shape[0], kv_norm.shape[0], cos.shape[-1]
    require(window.dim() == 2 and window.shape[0] >= reach, f"a window of less than {reach} rows")
    require_activation("window", window, d)
    require_contiguous(window=window)
    given = ports(pools, 1)
    y16 = require_inputs(y16, y8, pools)
    fixed = [part for pool in pools for part in (pool.ape, pool.norm)]
    written = [window, *(part for pool in pools for part in (pool.inputs, *tensors(pool.rows)))]
    require_apart(written, [y8, y16, q_norm, kv_norm, cos, sin, position, *fixed])
    latents = y8.new_empty((m, q_norm.shape[0]))
    keys = window.new_empty((reach + m, d))
    intake.launch(y8, y16, q_norm, kv_norm, cos, sin, position, latents, keys[reach:], (), 0,
                  eps=eps, rounds=rounds, ring=False, tile=intake.TILE)  # fmt: skip
    shaped = shapes(pools, pairs, POSITIONS, rounds=rounds)
    ends = sum(triton.cdiv(m, pool.ratio) for pool in pools)
    block = triton.next_power_of_2(d)
    if ends + reach:
        _gather[(ends + reach,)](
            y16, y16.shape[1], cos, sin, position, window, keys, given, m, d, pairs,
            cos.shape[0], window.shape[0], reach, eps,
            SHAPES=shaped, BLOCK=block, ROUNDS=rounds, num_warps=_WARPS,
        )  # fmt: skip
    slots = max([window.shape[0], *(pool.inputs.shape[0] for pool in pools)])
    parts = 1 + sum(triton.cdiv(2 * pool.width, _CHANNELS) for pool in pools)
    if m:
        _keep[(min(m, slots), parts)](
            y16, y16.shape[1], position, window, keys, given, m, d, window.shape[0], reach,
            BLOCK=block, CHANNELS=_CHANNELS, num_warps=_WARPS,
        )  # fmt: skip
    return latents, keys


@triton.jit(do_not_specialize=["m"])
def _gather(  # type: ignore[no-untyped-def]
    y16, columns, cos, sin, position, window, keys, pools, m, d, pairs, context, slots, reach, eps,
    SHAPES: tl.constexpr, BLOCK: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    """What is read from the rings as the chunk finds them: ended windows, and past keys."""
    part = tl.program_id(0)
    start = tl.load(position)
    for i in tl.static_range(len(pools)):
        w = start // SHAPES[i][0] + part
        if (part >= 0) & ((w + 1) * SHAPES[i][0] <= start + m):
            complete(pools[i], w, cos, sin, context, pairs, eps, y16, columns, start,
                     tl.constexpr(SHAPES[i]), i == 1, ROUNDS, True)  # fmt: skip
        part -= tl.cdiv(m, SHAPES[i][0])
    if part >= 0:
        at = start - reach + part
        channel = tl.arange(0, BLOCK)
        there = (channel < d) & (at >= 0)
        row = tl.load(window + (at % slots) * d + channel, mask=there, other=0.0)
        tl.store(keys + part * d + channel, row, mask=channel < d)


@triton.jit(do_not_specialize=["m"])
def _keep(  # type: ignore[no-untyped-def]
    y16, columns, position, window, keys, pools, m, d, slots, reach,
    BLOCK: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The last rows of the chunk go to the rings, as many as each has slots."""
    row = m - 1 - tl.program_id(0).to(tl.int64)
    at = tl.load(position) + row
    part = tl.program_id(1) - 1
    if (part == -1) & (tl.program_id(0) < slots):
        channel = tl.arange(0, BLOCK)
        value = tl.load(keys + (reach + row) * d + channel, mask=channel < d, other=0.0)
        tl.store(window + (at % slots) * d + channel, value, mask=channel < d)
    for i in tl.static_range(len(pools)):
        chunks = tl.cdiv(2 * pools[i].width, CHANNELS)
        if (part >= 0) & (part < chunks) & (tl.program_id(0) < pools[i].slots):
            take(y16, columns, pools[i], row, at, part, CHANNELS)
        part -= chunks
