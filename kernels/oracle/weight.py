"""The checkpoint's weight formats, read back as float32.

FP8 is E4M3 with one E8M0 exponent per 128 x 128 block. MXFP4 packs two E2M1 codes a byte (even
channel in the low nibble) with one E8M0 exponent per row and 32 channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.oracle.rounding import E2M1_VALUES

FP8_BLOCK = 128
FP4_GROUP = 32
E8M0_BIAS = 127


def decode_e8m0(exponents: Tensor) -> Tensor:
    """Float32 powers of two of E8M0, read as raw bytes (a numeric cast would destroy it)."""
    return torch.exp2(exponents.view(torch.uint8).float() - E8M0_BIAS)


def decode_fp8(weight: Tensor, scale: Tensor) -> Tensor:
    """Float32 [n, k] of E4M3 `weight` [n, k] and E8M0 `scale` [ceil(n/128), ceil(k/128)]."""
    n, k = weight.shape
    wide = decode_e8m0(scale).repeat_interleave(FP8_BLOCK, 0).repeat_interleave(FP8_BLOCK, 1)
    return weight.float() * wide[:n, :k]


def decode_mxfp4(packed: Tensor, scale: Tensor) -> Tensor:
    """Float32 [..., k] of packed E2M1 [..., k / 2] (int8) and E8M0 `scale` [..., k / 32]."""
    table = torch.tensor(E2M1_VALUES + tuple(-v for v in E2M1_VALUES), device=packed.device)
    codes = packed.view(torch.uint8)
    pairs = torch.stack((codes & 15, codes >> 4), -1).flatten(-2)
    values = table[pairs.long()].unflatten(-1, (-1, FP4_GROUP))
    return (values * decode_e8m0(scale)[..., None]).flatten(-2)
