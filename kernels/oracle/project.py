"""A layer's first products: one FP8 weight and one of more precision, read by the same rows."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.oracle import fp8_linear


def project(
    x: Tensor, weight8: Tensor, scale8: Tensor, weight16: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`x` [m, k] times both weights: [m, n8] of `x`'s dtype and float32 [m, n16].

    `weight8` E4M3 [n8, k] with `scale8` E8M0 [ceil(n8 / 128), ceil(k / 128)]; `weight16` [n16, k].
    Without `weight16` the second product has no columns.
    """
    first = fp8_linear.multiply(x, weight8, scale8)
    if weight16 is None:
        return first, x.new_empty((x.shape[0], 0), dtype=torch.float32)
    wide = torch.promote_types(torch.promote_types(x.dtype, weight16.dtype), torch.float32)
    return first, (x.to(wide) @ weight16.to(wide).t()).float()
