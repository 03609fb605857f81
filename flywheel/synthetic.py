"""Models without weights: `synthetic:NAME` is a geometry of the engine's with random ones.

Such a model shows what a step costs and nothing else. Its tokens mean nothing, so nothing about
acceptance may be read from it: it is measured by plain decode alone, under a ruler that says so.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from flywheel.errors import UsageError
from flywheel.suite import engine_assets

PREFIX = "synthetic:"
WORD = "synthetic"
# The first configuration of a campaign on such a model: nothing is drafted.
FIRST: Mapping[str, object] = {"draft_width": 0}
NOTE = (
    "synthetic weights: times are those of plain decode with random tokens, tau is absent, and no "
    "text means anything"
)
_PATIENCE_S = 120.0


def name_of(checkpoint: str | Path) -> str | None:
    """The geometry that a checkpoint's name asks for; None for a folder."""
    text = str(checkpoint)
    return text.removeprefix(PREFIX) if text.startswith(PREFIX) else None


def check(checkpoint: str | Path) -> None:
    """Raise UsageError for a name that the engine has no geometry of."""
    known = sorted(path.parent.name for path in engine_assets().glob("*/config.json"))
    if name_of(checkpoint) not in known:
        raise UsageError(
            f"there is no model {checkpoint}; known: {', '.join(PREFIX + one for one in known)}."
        )


@lru_cache
def weights_bytes(name: str) -> int:
    """Bytes that the weights of a geometry take as a checkpoint stores them, asked of the engine.

    0 where the engine does not answer: then nothing is refused for their size.
    """
    command = (sys.executable, "-m", "engine.inventory", "--synthetic", name, "--json",
               "--bandwidth-gb-s", "1")  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PATIENCE_S, check=True)
        return int(json.loads(done.stdout)["totals"]["stored_bytes"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return 0
