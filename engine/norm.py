"""Root-mean-square normalisation in few operations; `kernels.oracle.norm` says what it computes."""

from __future__ import annotations

import functools

import torch
from torch import Tensor


def normalise(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """`x` [..., d] scaled to unit mean square, times `weight` [..., d] when given.

    Float32 inside, and only operations that are rounded alike in vectors and their remainders.
    """
    share, floor = _constants(x.shape[-1], eps)
    size = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    size *= share
    scaled = x / size.mul_(size).add_(floor).sqrt_()
    if weight is not None:
        scaled *= weight
    return scaled.to(x.dtype)


@functools.cache
def _constants(width: int, eps: float) -> tuple[Tensor, Tensor]:
    """Tensors, since a Python number would be converted at every use."""
    return torch.tensor(width**-0.5), torch.tensor(eps)
