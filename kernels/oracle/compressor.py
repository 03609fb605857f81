"""Learned gated pooling of a window of rows into one compressed row."""

from __future__ import annotations

import torch
from torch import Tensor


def pool(values: Tensor, gates: Tensor) -> Tensor:
    """Softmax of `gates` over the slots, per channel, times `values` [..., slots, d]: [..., d]."""
    return (torch.softmax(gates.float(), -2) * values.float()).sum(-2)


def overlap(rows: Tensor) -> Tensor:
    """Slots of overlapping windows: `rows` [..., windows + 1, r, 2 d] -> [..., windows, 2 r, d].

    Window w takes the first channel half of window w - 1 and the second half of window w. The
    leading window is the predecessor of the first: gates of -inf there when it has none.
    """
    half = rows.shape[-1] // 2
    before, current = rows[..., :-1, :, :half], rows[..., 1:, :, half:]
    return torch.cat((before, current), -2)
