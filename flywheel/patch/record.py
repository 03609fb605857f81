"""A gated patch in the ledger: one row, admitted or refused, with its diff and what was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from flywheel.errors import RecordError
from flywheel.ledger import models
from flywheel.ledger.rows import PatchRow
from flywheel.ledger.store import Ledger

ADMITTED, REFUSED = "admitted", "refused"


def enter(ledger: Ledger, row: PatchRow) -> None:
    """Append a patch's row, unless it is there."""
    with ledger.transaction() as writer:
        writer.append_once(models.patch, "name", **{**asdict(row), "gates": dict(row.gates)})


def to_json(row: PatchRow) -> dict[str, Any]:
    """The row as it travels in a run's manifest."""
    return {**asdict(row), "gates": dict(row.gates)}


def from_json(value: Mapping[str, Any]) -> PatchRow:
    """Inverse of `to_json`; RecordError when it is no such row."""
    try:
        return PatchRow(**value)
    except TypeError as error:
        raise RecordError(f"a run's lineage holds no patch: {error}") from error
