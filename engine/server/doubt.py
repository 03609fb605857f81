"""When failures that are each a request's own, taken together, are a fault of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.errors import EngineError, NumericsError

# How many requests in a row may end so; with one more the engine's memory is what is wrong, and
# only a new load helps. One prompt may overflow by itself, and a client may try it again.
TOLERATED: Mapping[type[EngineError], int] = {NumericsError: 2}


@dataclass(frozen=True, slots=True)
class Doubt:
    """How many requests in a row, up to the last one, have failed in the same tolerated way."""

    error: EngineError | None = None  # without a traceback, which would keep the engine alive
    row: int = 0

    def after(self, error: BaseException | None) -> Doubt:
        """The doubt once another request has ended: well, or with an error."""
        if not isinstance(error, EngineError) or type(error) not in TOLERATED:
            return Doubt()
        kind = type(error)
        return Doubt(kind(str(error)), self.row + 1 if kind is type(self.error) else 1)

    @property
    def fault(self) -> EngineError | None:
        """The engine's fault that it amounts to, if it does."""
        if self.error is None or self.row <= TOLERATED[type(self.error)]:
            return None
        return type(self.error)(f"{self.row} requests in a row failed. {self.error}")
