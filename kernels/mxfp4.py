"""What kernels ask of MXFP4 matrices: E2M1 codes, two a byte, one E8M0 scale per 32 channels."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.launch import require, require_contiguous
from kernels.narrow import E2M1_SCALES

GROUP = 32


def check(name: str, packed: Tensor, scale: Tensor, outputs: int, channels: int) -> None:
    """Refuse `packed` and `scale` that are not experts of `outputs` x `channels` weights."""
    experts = packed.shape[0]
    require(packed.dtype in (torch.int8, torch.uint8), f"{name} is {packed.dtype}, not bytes")
    require(channels % GROUP == 0, f"{channels} channels are no whole groups of {GROUP}")
    require(
        packed.shape == (experts, outputs, channels // 2)
        and scale.shape == (experts, outputs, channels // GROUP),
        f"{name} {tuple(packed.shape)} with scales {tuple(scale.shape)} "
        f"is not {outputs} x {channels} weights an expert",
    )
    require_contiguous(**{name: packed, f"scales of {name}": scale})


def check_scales(scale: Tensor) -> None:
    """Refuse scales outside the range that the kernels multiply exactly (once, at load).

    Reads `scale` on the host's behalf, so it waits for the device.
    """
    if scale.numel() == 0:
        return
    low, high = scale.view(torch.uint8).aminmax()
    least, most = E2M1_SCALES
    require(
        least <= int(low) and int(high) <= most,
        f"scales from 2**{int(low) - 127} to 2**{int(high) - 127} "
        f"leave 2**{least - 127} .. 2**{most - 127}",
    )
