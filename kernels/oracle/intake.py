"""What a step leaves in a layer's rings: key/value rows, and the inputs of its compressors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.oracle.norm import rms_norm
from kernels.oracle.rotary import rotate
from kernels.oracle.rounding import cache_round
from kernels.pool import Pool


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
) -> Tensor:
    """Normalised query latents [m, q_rank]; key/value rows and compressor inputs go to the rings.

    `y8` [m, q_rank + head_dim]: latents and key/value rows as projected, BF16 or float32. `y16`
    float32 [m, n]: values and gates of each of `pools` in turn, then columns of no concern here;
    None without pools. `q_norm` [q_rank], `kv_norm` [head_dim]. `cos`, `sin` float32 [context,
    pairs] by position. Row r is at p = `position` [1] (int64) + r, and so in slot p % slots of
    `window` [slots, head_dim] and of every pool's `inputs`; rings have at least m slots.

    A row is normalised, cast, rotated, cast, and, where `rounds`, rounded by `cache_round`. Gates
    are stored with the `ape` of their place in the window.
    """
    latents, stored = rows(y8, q_norm, kv_norm, cos, sin, position, eps=eps, rounds=rounds)
    at = position + torch.arange(y8.shape[0], device=y8.device)
    window[at % window.shape[0]] = stored.to(window.dtype)
    first = 0
    for pool in pools:
        assert y16 is not None
        pool.inputs[at % pool.inputs.shape[0]] = inputs(y16, first, pool, at).to(pool.inputs.dtype)
        first += 2 * pool.width
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
) -> tuple[Tensor, Tensor]:
    """Latents [m, q_rank] and key/value rows [m, head_dim] as `store` makes them, kept nowhere."""
    latents, projected = y8.split((q_norm.shape[0], kv_norm.shape[0]), -1)
    at = position + torch.arange(y8.shape[0], device=y8.device)
    made = row(projected, kv_norm, cos[at], sin[at], eps=eps, rounds=rounds)
    return rms_norm(latents, q_norm, eps), made


def row(x: Tensor, norm: Tensor, cos: Tensor, sin: Tensor, *, eps: float, rounds: bool) -> Tensor:
    """Key/value rows of `x` [..., d]: normalised, rotated, and rounded where `rounds`."""
    turned = rotate(rms_norm(x, norm, eps), cos, sin)
    return cache_round(turned, 2 * cos.shape[-1]) if rounds else turned


def inputs(y16: Tensor, first: int, pool: Pool, at: Tensor) -> Tensor:
    """Values beside gates [m, 2 width] of `pool`, from column `first` on, of the rows at `at`."""
    values, gates = y16[:, first : first + 2 * pool.width].chunk(2, -1)
    return torch.cat((values, gates + pool.ape[at % pool.ratio]), -1)
