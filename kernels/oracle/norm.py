"""Root-mean-square normalisation."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Scale the last axis of `x` [..., d] to unit mean square, times `weight` [d] when given.

    Statistics and the weight product are float32; one cast back to `x.dtype` at the end.
    """
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (scaled if weight is None else scaled * weight).to(x.dtype)
