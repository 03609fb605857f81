"""The real server, whose weights are gone as soon as the file named in BREAK is there."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.batch import Batch, Generation, Outcome
from engine.server.command import main


class Breaking(Batch):
    """Loses its weights once for each time the file is there; PyTorch says the rest."""

    def advance(self, generations: Sequence[Generation]) -> list[Outcome]:
        wish = Path(os.environ["BREAK"])
        if wish.exists():
            wish.unlink()
            weights = self._engine.backbone.weights
            weights.head.data = weights.head.data[:, :1]
        return super().advance(generations)


if __name__ == "__main__":
    from engine.server import service

    service.Batch = Breaking  # type: ignore[misc]
    sys.exit(main())
