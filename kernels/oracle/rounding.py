"""Round trips through the narrow formats, and the Hadamard rotation that precedes one of them.

E4M3: largest value 448; E2M1: {0, .5, 1, 1.5, 2, 3, 4, 6} with a sign. Scales are powers of two.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

E4M3_MAX = 448.0
E2M1_MAX = 6.0
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_FP8_FLOOR = 1e-4
_FP4_FLOOR = 6.0 * 2.0**-126


def power_of_two_scale(largest: Tensor, limit: float) -> Tensor:
    """Smallest power of two `s` with `largest / s <= limit`."""
    return torch.exp2(torch.ceil(torch.log2(largest / limit)))


def fp8_round(x: Tensor, group: int) -> Tensor:
    """E4M3 round trip of `x` [..., d] in groups of `group` channels."""
    grouped = x.float().unflatten(-1, (-1, group))
    largest = grouped.abs().amax(-1, keepdim=True).clamp_min(_FP8_FLOOR)
    scale = power_of_two_scale(largest, E4M3_MAX)
    narrow = (grouped / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return (narrow.float() * scale).flatten(-2).to(x.dtype)


def fp4_round(x: Tensor, group: int = 32) -> Tensor:
    """E2M1 round trip of `x` [..., d] in groups of `group` channels; ties go to the even code."""
    grouped = x.float().unflatten(-1, (-1, group))
    largest = grouped.abs().amax(-1, keepdim=True).clamp_min(_FP4_FLOOR)
    scale = power_of_two_scale(largest, E2M1_MAX)
    scaled = (grouped / scale).clamp(-E2M1_MAX, E2M1_MAX)
    return (e2m1_nearest(scaled) * scale).flatten(-2).to(x.dtype)


def e2m1_nearest(x: Tensor) -> Tensor:
    """Nearest E2M1 value of `x` in [-6, 6]: a step of 0.5 below 2, of 1 below 4, of 2 above."""
    size = x.abs()
    step = torch.where(size < 2.0, 0.5, torch.where(size < 4.0, 1.0, 2.0))
    return torch.copysign(torch.round(size / step) * step, x)


def cache_round(row: Tensor, rotary_dim: int, group: int = 64) -> Tensor:
    """Round a key/value row [..., d]: E4M3 on all but the last `rotary_dim` channels."""
    head, tail = row[..., :-rotary_dim], row[..., -rotary_dim:]
    return torch.cat((fp8_round(head, group), tail), -1)


def hadamard(x: Tensor) -> Tensor:
    """Normalised Hadamard transform of the last axis (a power of two), natural order."""
    return x @ _hadamard_matrix(x.shape[-1]).to(device=x.device, dtype=x.dtype)


@functools.cache
def _hadamard_matrix(size: int) -> Tensor:
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)), 0)
    return matrix * size**-0.5


def hadamard_fp4(x: Tensor, group: int = 32) -> Tensor:
    """`fp4_round` of the Hadamard transform of `x` [..., d]."""
    return fp4_round(hadamard(x), group)
