"""Context rows of the draft head: keys and values of committed positions, for every stage."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.oracle.intake import row


def extend(
    y: Tensor,
    norms: Tensor,
    cos: Tensor,
    sin: Tensor,
    start: Tensor,
    count: Tensor,
    rings: Tensor,
    *,
    eps: float,
    rounds: bool,
) -> None:
    """Store the first `count` [1] (int64) rows of `y` in `rings`, at positions from `start` [1].

    `y` [m, stages d], BF16 or float32, as projected, stage by stage; `norms` [stages, d]; `cos`,
    `sin` float32 [context, pairs] by position; `rings` [stages, slots, d], position p at slot
    p % slots. Of more rows than slots the last are kept. Rows are made as in `intake.store`.
    """
    stages, slots, d = rings.shape
    kept = torch.arange(int(count), device=y.device)[-slots:]
    at = start + kept
    x = y[kept].unflatten(-1, (stages, d))
    made = row(x, norms, cos[at][:, None], sin[at][:, None], eps=eps, rounds=rounds)
    rings[:, at % slots] = made.transpose(0, 1).to(rings.dtype)
