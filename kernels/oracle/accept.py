"""The end of a verify step: how many drafts the target confirms, and what follows them."""

from __future__ import annotations

import torch
from torch import Tensor

# Where the report of a round has what; the committed tokens come last, -1 after their end.
COUNT, FINITE, POSITION, ANCHOR, COMMITTED = range(5)


def accept(tokens: Tensor, targets: Tensor, finite: Tensor, position: Tensor) -> Tensor:
    """Report int64 [4 + m] of a step over `tokens` int64 [m], an anchor and the drafts after it.

    `targets` int64 [m] are the target's choices after each of them, `finite` bool [m] whether
    their scores are numbers, `position` int64 [1] that of the anchor. The report holds the number
    of confirmed drafts a, whether all is finite, the next position, the next anchor, and the a + 1
    committed tokens. `tokens[0]` becomes the next anchor, `position` grows by a + 1.
    """
    count = (tokens[1:] == targets[:-1]).long().cumprod(0).sum()
    anchor = targets[count]
    slots = torch.arange(len(tokens), device=tokens.device)
    committed = torch.where(slots <= count, targets, -1)
    position += count + 1
    tokens[0] = anchor
    return torch.cat((torch.stack((count, finite.all().long(), position[0], anchor)), committed))
