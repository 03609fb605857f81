"""The real server, whose head is filled with NaN for as long as the file named in POISON is there.

With ONCE in it the file goes with the first filling: only what is in memory is wrong then.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from engine.batch import Batch, Generation, Outcome
from engine.server.command import main

ONCE = "once"


class Poisoned(Batch):
    """Computes with what the file makes of its weights."""

    def advance(self, generations: Sequence[Generation]) -> list[Outcome]:
        wish = Path(os.environ["POISON"])
        if wish.exists():
            weights = self._engine.backbone.weights
            weights.head.data = torch.full_like(weights.head.data, torch.nan)
            if wish.read_text() == ONCE:
                wish.unlink()
        return super().advance(generations)


if __name__ == "__main__":
    from engine.server import service

    service.Batch = Poisoned  # type: ignore[misc]
    sys.exit(main())
