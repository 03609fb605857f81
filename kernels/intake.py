"""What a step leaves in a layer's rings, in one launch: key/value rows and compressor inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import ahead
from kernels.compressor import ports, take
from kernels.launch import (
    require,
    require_activation,
    require_apart,
    require_contiguous,
    require_scalar,
)
from kernels.norm import inverse_sizes
from kernels.packed import tensors
from kernels.pool import Pool
from kernels.rotary import angles, require_table
from kernels.row import made, row_block


@dataclass(frozen=True, slots=True)
class Tile:
    """Launch of the kernel."""

    channels: int  # of compressor inputs in a program; a power of two
    warps: int
    early: bool = False  # begin before the launch before has ended


TILE = Tile(channels=1024, warps=4)


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
    eps: float,
    rounds: bool,
    tile: Tile = TILE,
) -> Tensor:
    """Normalised query latents [m, q_rank]; key/value rows and compressor inputs go to the rings.

    `y8` [m, q_rank + head_dim]: latents and key/value rows as projected, BF16 or float32. `y16`
    float32 [m, n]: values and gates of each of `pools` in turn, then columns of no concern here;
    None without pools. `q_norm` [q_rank], `kv_norm` [head_dim]. `cos`, `sin` float32 [context,
    pairs] by position. Row r is at p = `position` [1] (int64) + r, and so in slot p % slots of
    `window` [slots, head_dim], BF16 or float32, and of every pool's `inputs`. Rings have at least
    m slots, and a pool's hold a window besides.

    A row is normalised, cast, rotated, cast, and, where `rounds`, rounded by `cache_round`. Gates
    are stored with the `ape` of their place in the window. Raises ValueError for operands that do
    not fit.
    """
    m = y8.shape[0]
    require(window.dim() == 2 and window.shape[0] >= m, f"a window of {len(window)} for {m} rows")
    require_activation("window", window, kv_norm.shape[0])
    require_contiguous(window=window)
    given = ports(pools, m)
    y16 = require_inputs(y16, y8, pools)
    read = (y8, y16, q_norm, kv_norm, cos, sin, position)
    fixed = [part for pool in pools for part in (pool.ape, pool.norm)]
    rings = [pool.inputs for pool in pools]
    made_ = [part for pool in pools for part in tensors(pool.rows)]
    require_apart([window, *rings], [*read, *fixed, *made_])
    latents = y8.new_empty((m, q_norm.shape[0]))
    parts = sum(triton.cdiv(2 * pool.width, tile.channels) for pool in pools)
    launch(y8, y16, q_norm, kv_norm, cos, sin, position, latents, window, given, parts,
           eps=eps, rounds=rounds, ring=True, tile=tile)  # fmt: skip
    return latents


def rows(
    y8: Tensor,
    q_norm: Tensor,
    kv_norm: Tensor,
    cos: Tensor,
    sin: Tensor,
    position: Tensor,
    *,
    eps: float,
    rounds: bool,
    tile: Tile = TILE,
) -> tuple[Tensor, Tensor]:
    """Latents [m, q_rank] and key/value rows [m, head_dim] as `store` makes them, kept nowhere."""
    m = y8.shape[0]
    latents, made_ = y8.new_empty((m, q_norm.shape[0])), y8.new_empty((m, kv_norm.shape[0]))
    launch(y8, y8, q_norm, kv_norm, cos, sin, position, latents, made_, (), 0,
           eps=eps, rounds=rounds, ring=False, tile=tile)  # fmt: skip
    return latents, made_


def require_inputs(y16: Tensor | None, y8: Tensor, pools: Sequence[Pool]) -> Tensor:
    """The projected inputs of `pools`, checked; anything of that dtype if there are none."""
    if not pools:
        return y8
    columns = sum(2 * pool.width for pool in pools)
    require(y16 is not None, "pools without inputs")
    assert y16 is not None
    require(
        y16.dim() == 2 and y16.shape[0] == y8.shape[0] and y16.shape[1] >= columns,
        f"inputs {tuple(y16.shape)} do not fit {y8.shape[0]} rows of {columns} channels",
    )
    require(y16.dtype == torch.float32, f"inputs are {y16.dtype}, not float32")
    require_contiguous(y16=y16)
    return y16


def launch(
    y8: Tensor, y16: Tensor, q_norm: Tensor, kv_norm: Tensor, cos: Tensor, sin: Tensor,
    position: Tensor, latents: Tensor, stored: Tensor, given: tuple[object, ...], parts: int,
    *, eps: float, rounds: bool, ring: bool, tile: Tile,
) -> None:  # fmt: skip
    """Fill `latents`, and `stored` by slot (`ring`) or by row; `parts` programs take inputs."""
    q_rank, d, pairs = q_norm.shape[0], kv_norm.shape[0], cos.shape[-1]
    require(y8.dim() == 2, f"y8 {tuple(y8.shape)} is not two-dimensional")
    require_activation("y8", y8, q_rank + d)
    require_table(cos, sin, d)
    require_scalar("position", position)
    require_contiguous(y8=y8, q_norm=q_norm, kv_norm=kv_norm)
    block = row_block(d, pairs, rounds=rounds)
    if y8.shape[0]:
        _intake[(y8.shape[0], 2 + parts)](
            y8, y16, q_norm, kv_norm, cos, sin, position, latents, stored, given,
            q_rank, d, pairs, cos.shape[0], y16.shape[1], stored.shape[0] if ring else 0, eps,
            LATENT=triton.next_power_of_2(q_rank), BLOCK=block, CHANNELS=tile.channels,
            ROUNDS=rounds, RING=ring, EARLY=tile.early,
            num_warps=tile.warps, launch_pdl=tile.early,
        )  # fmt: skip


@triton.jit
def _intake(  # type: ignore[no-untyped-def]
    y8, y16, q_norm, kv_norm, cos, sin, position, latents, stored, pools,
    q_rank, d, pairs, context, columns, slots, eps,
    LATENT: tl.constexpr, BLOCK: tl.constexpr, CHANNELS: tl.constexpr,
    ROUNDS: tl.constexpr, RING: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    ahead.begin(EARLY)
    row = tl.program_id(0).to(tl.int64)
    at = tl.load(position) + row
    x = y8 + row * (q_rank + d)
    part = tl.program_id(1) - 2
    if part == -2:
        channel = tl.arange(0, LATENT)[None, :]
        value = tl.load(x + channel, mask=channel < q_rank, other=0.0).to(tl.float32)
        value *= inverse_sizes(value, q_rank, eps)
        value *= tl.load(q_norm + channel, mask=channel < q_rank, other=0.0).to(tl.float32)
        value = value.to(latents.dtype.element_ty)
        tl.store(latents + row * q_rank + channel, value, mask=channel < q_rank)
    if part == -1:
        channel = tl.arange(0, BLOCK)[None, :]
        value = tl.load(x + q_rank + channel, mask=channel < d, other=0.0).to(tl.float32)
        c, s = angles(cos, sin, at, context, d, pairs, BLOCK // 2)
        value = made(value, kv_norm, c, s, d, pairs, eps, y8.dtype.element_ty, ROUNDS, BLOCK)
        place = at % slots if RING else row
        value = value.to(stored.dtype.element_ty)
        tl.store(stored + place * d + channel, value, mask=channel < d)
    for i in tl.static_range(len(pools)):
        chunks = tl.cdiv(2 * pools[i].width, CHANNELS)
        if (part >= 0) & (part < chunks):
            take(y16, columns, pools[i], row, at, part, CHANNELS)
        part -= chunks
