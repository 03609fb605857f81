"""The real server, except that nothing is drafted: the same tokens, at another price."""

from __future__ import annotations

import sys

from engine.batch import Batch
from engine.engine import Engine
from engine.server.command import main
from engine.torch_backend import TorchBackend


class Plain(Batch):
    """Says what its configuration is, and does not do it."""

    def __init__(self, engine: Engine, capacity: int) -> None:
        assert isinstance(engine.backend, TorchBackend)
        engine.backend.drafter = None
        super().__init__(engine, capacity)


if __name__ == "__main__":
    from engine.server import service

    service.Batch = Plain  # type: ignore[misc]
    sys.exit(main())
