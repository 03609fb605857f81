"""Linear layers whose weights are FP8 with 128 x 128 power-of-two scales."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.oracle.weight import decode_fp8


def multiply(x: Tensor, weight: Tensor, scale: Tensor, *, groups: int = 1) -> Tensor:
    """`x` [m, groups k] times E4M3 `weight` [groups n, k] -> [m, groups n] of `x`'s dtype.

    Group g of the channels meets rows g n .. (g + 1) n - 1; `scale` E8M0 [ceil(groups n / 128),
    ceil(k / 128)]. Float64 inputs are multiplied in float64, all others in float32.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    matrices = decode_fp8(weight, scale).to(wide).unflatten(0, (groups, -1))
    rows = x.to(wide).unflatten(-1, (groups, -1))
    return torch.einsum("mgk,gnk->mgn", rows, matrices).flatten(-2).to(x.dtype)
