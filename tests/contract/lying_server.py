"""The real server, except that its drafts are thrown away: the same tokens, at another price."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from engine.engine import Commit, Engine
from engine.server.__main__ import main

_generate = Engine.generate


def plainly(self: Engine, *given: Any, **named: Any) -> Iterator[Commit]:
    """Generate without speculation."""
    return _generate(self, *given, **{**named, "speculative": False})


if __name__ == "__main__":
    Engine.generate = plainly  # type: ignore[method-assign]
    sys.exit(main())
