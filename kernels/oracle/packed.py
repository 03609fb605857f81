"""Packed rows as plain ones hold them, and back."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.oracle.rounding import E2M1_MAX, E2M1_VALUES, E4M3_MAX, power_of_two_scale
from kernels.packed import CACHE_GROUP, INDEX_GROUP, Packed, Rows

_BIAS = 127
_SIGN = 8  # of an E2M1 code


def plain(rows: Rows, dtype: torch.dtype) -> Tensor:
    """`rows` [capacity, d] in `dtype`, which holds packed ones exactly; plain ones as they are."""
    if not isinstance(rows, Packed):
        return rows
    scale = torch.exp2(rows.scales[:, : rows.groups].float() - _BIAS)[..., None]
    if rows.tail is None:
        codes = torch.stack((rows.codes & 15, rows.codes >> 4), -1).flatten(1).long()
        values = torch.tensor(E2M1_VALUES, device=codes.device)
        values = torch.cat((values, -values))[codes].unflatten(1, (-1, INDEX_GROUP))
        return (values * scale).flatten(1).to(dtype)
    values = rows.codes.view(torch.float8_e4m3fn).float().unflatten(1, (-1, CACHE_GROUP))
    return torch.cat(((values * scale).flatten(1).to(dtype), rows.tail.to(dtype)), 1)


def put(rows: Rows, at: int, value: Tensor) -> None:
    """Make `value` [d], which is rounded where rows are packed, the row `at` of `rows`."""
    if not isinstance(rows, Packed):
        rows[at] = value.to(rows.dtype)
    elif rows.tail is None:
        scale, values = _scaled(value.float(), INDEX_GROUP, E2M1_MAX, 6.0 * 2.0**-126)
        size = values.abs()
        codes = torch.bucketize(size, torch.tensor(E2M1_VALUES, device=value.device))
        low, high = (codes + _SIGN * torch.signbit(values)).unflatten(0, (-1, 2)).unbind(-1)
        rows.codes[at] = (low + (high << 4)).to(torch.uint8)
        rows.scales[at, : rows.groups] = scale
    else:
        coded = rows.codes.shape[1]
        scale, values = _scaled(value[:coded].float(), CACHE_GROUP, E4M3_MAX, 1e-4)
        rows.codes[at] = values.to(torch.float8_e4m3fn).view(torch.uint8)
        rows.scales[at, : rows.groups] = scale
        rows.tail[at] = value[coded:].to(rows.tail.dtype)


def _scaled(x: Tensor, group: int, limit: float, floor: float) -> tuple[Tensor, Tensor]:
    """The E8M0 byte of each group of `x` [d], and `x` in units of its group's power of two."""
    grouped = x.unflatten(-1, (-1, group))
    scale = power_of_two_scale(grouped.abs().amax(-1).clamp_min(floor), limit)
    return (torch.log2(scale).round() + _BIAS).to(torch.uint8), (grouped / scale[:, None]).flatten()
