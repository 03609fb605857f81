"""Banks of MXFP4 matrices in the order in which tensor cores take them, re-laid once at load.

A checkpoint keeps two E2M1 codes a byte and one E8M0 scale per row and 32 channels. In a bank, 16
rows by 256 channels are one run of memory: every lane of a warp loads 16 bytes at a time and finds
in them its own operands of four products of 16 x 16 weights, so nothing is exchanged between lanes.
A word holds eight codes, scattered so that one shift and one mask bring most of them to the bits
where BF16 keeps its sign, exponent and mantissa (`kernels.narrow.e2m1`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from kernels.launch import require, require_contiguous
from kernels.narrow import E2M1_BIAS, E2M1_BITS, E2M1_SCALES

GROUP = 32  # channels of a scale
ROWS = 16  # of a tile
CHANNELS = 256  # of a tile


@dataclass(frozen=True, slots=True)
class Bank:
    """One matrix of every expert; rows and channels are padded with zeros to whole tiles."""

    codes: Tensor  # int32 [experts, row tiles, channel tiles, 4, 32, 4]: 64 channels, lane, word
    scales: Tensor  # int16 [experts, row tiles, channel tiles, 8, 8]: rows r and r + 8, 32 channels
    outputs: int
    channels: int

    @property
    def experts(self) -> int:
        """How many matrices there are."""
        return self.codes.shape[0]


def pack(packed: Tensor, scale: Tensor) -> Bank:
    """The bank of `packed` E2M1 bytes [e, n, k / 2] with `scale` E8M0 [e, n, k / 32].

    One expert at a time, so that little more memory is needed than the bank's own. Raises
    ValueError for operands that do not fit, or for scales that kernels do not multiply exactly.
    Reads the scales on the host's behalf, so it waits for the device.
    """
    experts, outputs, half = packed.shape
    _check(packed, scale)
    tiles = (-(-outputs // ROWS), -(-2 * half // CHANNELS))
    codes = packed.new_empty((experts, *tiles, 4, 32, 4), dtype=torch.int32)
    scales = packed.new_empty((experts, *tiles, 8, 8), dtype=torch.int16)
    for expert in range(experts):
        codes[expert] = _words(packed[expert].view(torch.uint8), tiles)
        scales[expert] = _pairs(scale[expert].view(torch.uint8), tiles)
    return Bank(codes, scales, outputs, 2 * half)


def reordered(x: Tensor) -> Tensor:
    """`x` [..., k] with the channels of every 32 in the order in which `wgmma` meets a bank's.

    A lane has four channels in a row of every 16, as `mma` likes them; `wgmma` takes two of every
    eight: 16 b + 4 t + 2 a + p goes to 16 a + 8 b + 2 t + p.
    """
    return x.unflatten(-1, (-1, 2, 4, 2, 2)).movedim(-2, -4).flatten(-5)


def require_bank(name: str, bank: Bank, outputs: int, channels: int) -> None:
    """Refuse a `bank` whose matrices are not `outputs` x `channels`."""
    require(
        (bank.outputs, bank.channels) == (outputs, channels),
        f"{name} holds {bank.outputs} x {bank.channels} weights an expert, "
        f"not {outputs} x {channels}",
    )


def _check(packed: Tensor, scale: Tensor) -> None:
    require(packed.dtype in (torch.int8, torch.uint8), f"codes are {packed.dtype}, not bytes")
    experts, outputs, half = packed.shape
    require(2 * half % GROUP == 0, f"{2 * half} channels are no whole groups of {GROUP}")
    require(
        scale.shape == (experts, outputs, 2 * half // GROUP),
        f"scales {tuple(scale.shape)} do not fit codes {tuple(packed.shape)}",
    )
    require_contiguous(codes=packed, scales=scale)
    if scale.numel() == 0:
        return
    low, high = scale.view(torch.uint8).aminmax()
    least, most = E2M1_SCALES
    require(
        least <= int(low) and int(high) <= most,
        f"scales from 2**{int(low) - 127} to 2**{int(high) - 127} "
        f"leave 2**{least - 127} .. 2**{most - 127}",
    )


def _words(packed: Tensor, tiles: tuple[int, int]) -> Tensor:
    """Words [row tiles, channel tiles, 4, 32, 4] of one expert's bytes [n, k / 2].

    Lane 4 g + t has channels 4 t to 4 t + 3 of every 16, of rows g and g + 8: code 4 a + 2 b + c of
    word 2 q + p is row 8 c + g, channel 32 q + 16 b + 4 t + 2 a + p.
    """
    rows, channels = tiles[0] * ROWS, tiles[1] * CHANNELS
    wide = pad(packed, (0, channels // 2 - packed.shape[1], 0, rows - packed.shape[0]))
    #       row tile, c, g, channel tile, 64, q, b, t, a; p is the half of the byte
    wide = wide.view(tiles[0], 2, 8, tiles[1], 4, 2, 2, 4, 2)
    codes = torch.stack((wide & 15, wide >> 4), -1)
    codes = codes.permute(0, 3, 4, 2, 7, 5, 9, 8, 6, 1).flatten(-3).flatten(-3, -2).flatten(3, 4)
    words = torch.zeros(codes.shape[:-1], dtype=torch.int32, device=packed.device)
    for place, code in zip(E2M1_BITS, codes.unbind(-1), strict=True):
        for bit, to in enumerate(place):
            words |= ((code >> bit) & 1).int() << to
    return words


def _pairs(scale: Tensor, tiles: tuple[int, int]) -> Tensor:
    """Pairs [row tiles, channel tiles, 8, 8] of one expert's scales [n, k / 32], biased."""
    rows, groups = tiles[0] * ROWS, tiles[1] * CHANNELS // GROUP
    right, below = groups - scale.shape[1], rows - scale.shape[0]
    wide = pad(scale, (0, right, 0, below), value=127) + E2M1_BIAS
    wide = wide.view(tiles[0], 2, 8, tiles[1], CHANNELS // GROUP)
    return wide.permute(0, 3, 2, 4, 1).contiguous().view(torch.int16).squeeze(-1)
