"""Which patches a configuration stands on, and the revision that it is run from. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flywheel.ledger.rows import PatchRow, View

FIELD = "patch"


def chain(view: View, config: Mapping[str, Any]) -> tuple[PatchRow, ...]:
    """Every patch in a configuration, the oldest first; empty for one of the box's own code."""
    rows = {row.name: row for row in view.patches}
    found: list[PatchRow] = []
    name = config.get(FIELD)
    while isinstance(name, str) and name in rows:
        row = rows.pop(name)  # a patch is never on top of itself
        found.append(row)
        name = view.variant(row.variant_id).incumbent.get(FIELD)
    return tuple(reversed(found))


def root(view: View, *configs: Mapping[str, Any]) -> str | None:
    """The commit that the first patch of some configurations was made on; None: they have none."""
    for config in configs:
        if found := chain(view, config):
            return found[0].base
    return None
