"""Scores of the next token, and the best of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.oracle.best import Best, best


class Head(NamedTuple):
    """What the output head says of every row."""

    scores: Tensor  # float32 [m, v]
    best: Best


def scores(x: Tensor, head: Tensor) -> Head:
    """`x` [m, d] times `head` [v, d], accumulated and left in float32."""
    wide = torch.promote_types(torch.promote_types(x.dtype, head.dtype), torch.float32)
    found = (x.to(wide) @ head.to(wide).t()).float()
    return Head(found, best(found))
