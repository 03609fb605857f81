"""How key/value rows are stored: as numbers, or packed to the bytes they carry.

Under the `cache` numerics both formats hold the same values exactly, so choosing one is a matter
of memory and time alone. Packed layout of a row: E4M3 codes of the unrotated channels, then the
rotary tail in float32 (it is never rounded), then one E8M0 exponent per group of 64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.formats import decode_e8m0, encode_e8m0
from engine.numerics import ROW_GROUP
from kernels.oracle.rounding import E4M3_MAX, power_of_two_scale


class RowFormat:
    """Encodes rows [..., dim] to stored rows and back; float32 unless told otherwise."""

    def __init__(self, name: str, dim: int, rotary_dim: int) -> None:
        self.name = name
        self.dim = dim
        self._plain = dim - rotary_dim
        self._rotary = rotary_dim
        if name == "packed":
            self.width = self._plain + 4 * rotary_dim + self._plain // ROW_GROUP
            self.dtype = torch.uint8
        else:
            self.width = dim
            self.dtype = torch.float32

    def encode(self, rows: Tensor) -> Tensor:
        """Stored form [..., width] of `rows` [..., dim]."""
        if self.name != "packed":
            return rows.to(self.dtype)
        head = rows[..., : self._plain].float().unflatten(-1, (-1, ROW_GROUP))
        scale = power_of_two_scale(head.abs().amax(-1).clamp_min(1e-4), E4M3_MAX)
        codes = (head / scale[..., None]).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
        tail = rows[..., self._plain :].float().contiguous()
        parts = (
            codes.flatten(-2).view(torch.uint8),
            tail.view(torch.uint8),
            encode_e8m0(scale).view(torch.uint8),
        )
        return torch.cat(parts, -1)

    def decode(self, stored: Tensor) -> Tensor:
        """Float32 rows [..., dim] of `stored` [..., width]."""
        if self.name != "packed":
            return stored.float()
        tail_end = self._plain + 4 * self._rotary
        codes = stored[..., : self._plain].contiguous().view(torch.float8_e4m3fn).float()
        tail = stored[..., self._plain : tail_end].contiguous().view(torch.float32)
        scale = decode_e8m0(stored[..., tail_end:].contiguous())
        head = codes.unflatten(-1, (-1, ROW_GROUP)) * scale[..., None]
        return torch.cat((head.flatten(-2), tail), -1)
