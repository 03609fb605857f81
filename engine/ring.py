"""Buffers of which position p lies at slot p modulo their length."""

from __future__ import annotations

import torch
from torch import Tensor


def read_ring(ring: Tensor, start: int, stop: int, axis: int = 0) -> Tensor:
    """A copy of positions `start` to `stop` (fewer than the ring holds), in order."""
    size = ring.shape[axis]
    first, count = start % size, stop - start
    if first + count <= size:
        return ring.narrow(axis, first, count).clone()
    whole = (ring.narrow(axis, first, size - first), ring.narrow(axis, 0, first + count - size))
    return torch.cat(whole, axis)


def write_ring(ring: Tensor, start: int, rows: Tensor, axis: int = 0) -> None:
    """Store `rows` (no more than the ring holds) at the positions from `start`."""
    size, count = ring.shape[axis], rows.shape[axis]
    first = start % size
    fits = min(count, size - first)
    if fits == count:
        ring.narrow(axis, first, count).copy_(rows)
        return
    ring.narrow(axis, first, fits).copy_(rows.narrow(axis, 0, fits))
    ring.narrow(axis, 0, count - fits).copy_(rows.narrow(axis, fits, count - fits))
