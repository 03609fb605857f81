"""Rotary position embedding on interleaved pairs of the last `2 * frequencies` channels."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernels.oracle.norm import rms_norm


def frequencies(rotary_dim: int, theta: float) -> Tensor:
    """Angles per position, float32 [rotary_dim / 2]: theta ** (-2 i / rotary_dim)."""
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    return 1.0 / theta**exponents


def yarn_frequencies(
    rotary_dim: int,
    theta: float,
    *,
    factor: float,
    original_positions: int,
    beta_fast: float,
    beta_slow: float,
) -> Tensor:
    """YaRN-interpolated frequencies (arXiv 2309.00071), without the attention factor."""
    plain = frequencies(rotary_dim, theta)
    low = math.floor(_correction_index(rotary_dim, theta, original_positions, beta_fast))
    high = math.ceil(_correction_index(rotary_dim, theta, original_positions, beta_slow))
    low, high = max(low, 0), min(high, rotary_dim - 1)
    span = max(high - low, 1e-3)
    ramp = (torch.arange(rotary_dim // 2, dtype=torch.float32) - low) / span
    keep = 1.0 - ramp.clamp(0.0, 1.0)
    return plain / factor * (1.0 - keep) + plain * keep


def _correction_index(rotary_dim: int, theta: float, positions: int, turns: float) -> float:
    """Channel pair that makes `turns` full turns over `positions`."""
    return rotary_dim * math.log(positions / (turns * 2 * math.pi)) / (2 * math.log(theta))


def table(positions: Tensor, inverse_frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine, float32 [..., pairs], for integer `positions` [...]."""
    angles = positions.to(torch.float32)[..., None] * inverse_frequencies
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, inverse: bool = False) -> Tensor:
    """Rotate the tail of `x` [..., d]; `cos`, `sin` broadcast over [..., pairs]. Float32 inside."""
    pairs = cos.shape[-1]
    head, tail = x[..., : -2 * pairs], x[..., -2 * pairs :]
    even, odd = tail.float().unflatten(-1, (pairs, 2)).unbind(-1)
    if inverse:
        sin = -sin
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)
    return torch.cat((head, turned.to(x.dtype)), -1)


def rotate_normalised(x: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """`rotate` of `x` [..., d] scaled to unit mean square: what enters a head's scores."""
    return rotate(rms_norm(x, None, eps), cos, sin)
