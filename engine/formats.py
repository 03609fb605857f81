"""The checkpoint's number formats: FP8 and MXFP4 with power-of-two scales, to and from float32.

FP8 is E4M3 with one E8M0 exponent per 128 x 128 block. MXFP4 packs two E2M1 codes a byte (even
channel in the low nibble) with one E8M0 exponent per row and 32 channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.oracle.rounding import (
    E2M1_MAX,
    E2M1_VALUES,
    E4M3_MAX,
    e2m1_nearest,
    power_of_two_scale,
)
from kernels.oracle.weight import (
    E8M0_BIAS,
    FP4_GROUP,
    FP8_BLOCK,
    decode_e8m0,
    decode_fp8,
    decode_mxfp4,
)

__all__ = [
    "FP4_GROUP",
    "FP8_BLOCK",
    "decode_e8m0",
    "decode_fp8",
    "decode_mxfp4",
    "encode_e8m0",
    "encode_fp8",
    "encode_mxfp4",
    "fp8_round_trip",
    "mxfp4_round_trip",
]


def encode_e8m0(scale: Tensor) -> Tensor:
    """E8M0 bytes of exact powers of two."""
    exponent = torch.log2(scale).round() + E8M0_BIAS
    return exponent.clamp(0, 254).to(torch.uint8).view(torch.float8_e8m0fnu)


def encode_fp8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """E4M3 values and E8M0 block scales of `weight` [n, k]."""
    n, k = weight.shape
    padded = torch.nn.functional.pad(weight.float(), (0, -k % FP8_BLOCK, 0, -n % FP8_BLOCK))
    blocks = padded.unflatten(0, (-1, FP8_BLOCK)).unflatten(2, (-1, FP8_BLOCK))
    largest = blocks.abs().amax((1, 3)).clamp_min(1e-4)
    scale = power_of_two_scale(largest, E4M3_MAX)
    narrow = (blocks / scale[:, None, :, None]).clamp(-E4M3_MAX, E4M3_MAX)
    codes = narrow.flatten(2, 3).flatten(0, 1)[:n, :k].to(torch.float8_e4m3fn)
    return codes.contiguous(), encode_e8m0(scale)


def encode_mxfp4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Packed E2M1 (int8) and E8M0 group scales of `weight` [..., k]."""
    groups = weight.float().unflatten(-1, (-1, FP4_GROUP))
    largest = groups.abs().amax(-1).clamp_min(E2M1_MAX * 2.0**-126)
    scale = power_of_two_scale(largest, E2M1_MAX)
    values = e2m1_nearest((groups / scale[..., None]).clamp(-E2M1_MAX, E2M1_MAX)).flatten(-2)
    table = torch.tensor(E2M1_VALUES)
    codes = torch.searchsorted(table, values.abs()) | (torch.signbit(values).long() << 3)
    codes = codes.to(torch.uint8)
    return (codes[..., ::2] | (codes[..., 1::2] << 4)).view(torch.int8), encode_e8m0(scale)


def fp8_round_trip(weight: Tensor) -> Tensor:
    """`weight` as it will read back after an FP8 export."""
    return decode_fp8(*encode_fp8(weight))


def mxfp4_round_trip(weight: Tensor) -> Tensor:
    """`weight` as it will read back after an MXFP4 export."""
    return decode_mxfp4(*encode_mxfp4(weight))
