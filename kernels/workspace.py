"""Where the programs of one launch meet: parts of sums, and how many have come.

A product that is split over its channels ends in the launch that began it: whoever comes last adds
up the parts, in their order, so that the bits do not depend on who that was.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.launch import require


@dataclass(frozen=True, slots=True)
class Workspace:
    """Memory that launches of one stream may share, one after the other.

    The arrivals are zero before and after every launch, so nothing has to be cleared in between.
    """

    parts: Tensor  # float32, of any value
    arrivals: Tensor  # int32, zeros

    @property
    def words(self) -> Tensor:
        """The parts as int64."""
        return self.parts[: self.parts.numel() // 2 * 2].view(torch.int64)

    @classmethod
    def on(
        cls, device: torch.device | str, *, parts: int = 1 << 22, arrivals: int = 1 << 14
    ) -> Workspace:
        """Room for every kernel at the model's shapes: 16 MiB and 64 KiB."""
        return cls(
            torch.empty(parts, dtype=torch.float32, device=device),
            torch.zeros(arrivals, dtype=torch.int32, device=device),
        )


def room(given: Workspace | None, device: torch.device, parts: int, arrivals: int) -> Workspace:
    """`given` if it is large enough, or a new one of that size; else ValueError."""
    if given is None:
        return Workspace.on(device, parts=parts, arrivals=arrivals)
    require(
        given.parts.numel() >= parts and given.arrivals.numel() >= arrivals,
        f"a workspace of {given.parts.numel()} parts and {given.arrivals.numel()} arrivals, not "
        f"{parts} and {arrivals}",
    )
    require(given.parts.device == device, f"the workspace is on {given.parts.device}, not {device}")
    return given
