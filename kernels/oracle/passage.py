"""What a chunk of a prompt leaves in a layer's rings and compressed rows: many steps at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.oracle import heads, intake, packed
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
    reach: int,
    eps: float,
    rounds: bool,
) -> tuple[Tensor, Tensor]:
    """Latents [m, q_rank], and the keys [reach + m, head_dim] that the chunk's queries see.

    Arguments as in `intake.store`, and any number of rows. The keys, of `window`'s dtype, are the
    rows of the `reach` positions before the chunk (zeros before position 0), then the chunk's own.
    Rings and compressed rows are left as one step after another would leave them, so what
    `heads.prepare` does for `pools` is done here.
    """
    m, start = y8.shape[0], int(position)
    past = torch.arange(start - reach, start, device=y8.device)
    seen = torch.where((past >= 0)[:, None], window[past % window.shape[0]], 0.0)
    latents, own = intake.rows(y8, q_norm, kv_norm, cos, sin, position, eps=eps, rounds=rounds)
    keys = torch.cat((seen, own.to(window.dtype)))
    _write(window, start, keys[reach:])
    first = 0
    for pool, is_key in zip(pools, (False, True), strict=False):
        assert y16 is not None
        at = torch.arange(start, start + m, device=y8.device)
        given = intake.inputs(y16, first, pool, at)
        _complete(pool, start, given, cos, sin, keys=is_key, eps=eps, rounds=rounds)
        _write(pool.inputs, start, given)
        first += 2 * pool.width
    return latents, keys


def _complete(
    pool: Pool, start: int, given: Tensor, cos: Tensor, sin: Tensor, *, keys: bool, eps: float,
    rounds: bool,
) -> None:  # fmt: skip
    """Make the rows of the windows that end among the `given` inputs [m, 2 width]."""
    first = start // pool.ratio
    base = (first + 1) * pool.ratio - pool.span  # the earliest position that is pooled
    past = torch.arange(base, start, device=given.device)
    held = torch.cat((pool.inputs[past % pool.inputs.shape[0]], given))
    for w in range(first, (start + given.shape[0]) // pool.ratio):
        offset = (w - first) * pool.ratio
        span = held[offset : offset + pool.span]
        row = heads.pooled(span, pool, w, cos, sin, keys=keys, eps=eps, rounds=rounds)
        packed.put(pool.rows, w, row)


def _write(ring: Tensor, start: int, given: Tensor) -> None:
    """Store the last of the rows `given`, the first of which is at `start`."""
    kept = min(given.shape[0], ring.shape[0])
    at = torch.arange(start + given.shape[0] - kept, start + given.shape[0], device=ring.device)
    ring[at % ring.shape[0]] = given[given.shape[0] - kept :].to(ring.dtype)
