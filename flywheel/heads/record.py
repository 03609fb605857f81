"""An archived head in the ledger: its files first, then its row, and never one without the other.

A crash between the two leaves a folder that the next call finds and enters.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flywheel.heads import archive
from flywheel.ledger import models
from flywheel.ledger.store import Ledger

START = "start"
_TOLD = (
    "recipe", "steps", "blocks", "sequences", "seconds", "machine", "capture_sha256",
    "start_sha256", "equivalence", "trained_tensors", "trained_parameters", "without_gradient",
    "export",
)  # fmt: skip


def about(metrics: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """What a card says beyond its files: the training in short, and where the head belongs."""
    history = metrics.get("history") or []
    training = {name: metrics[name] for name in _TOLD if name in metrics}
    ends = {"first": history[0], "last": history[-1]} if history else {}
    return {**more, "training": {**training, **ends}}


def changes(card: Mapping[str, Any]) -> dict[str, Any]:
    """All that a head's recipe changes of the usual one: its lever, on top of its incumbent's.

    Empty for a head that was trained by hand, of which only its weights are known.
    """
    lever = card.get("lever") or {}
    return {**lever.get("base", {}), **of_recipe(lever.get("recipe", {}))}


def of_recipe(change: Mapping[str, Any]) -> dict[str, Any]:
    """What a lever changes of the recipe; where training starts from is not a part of it."""
    return {name: value for name, value in change.items() if name != START}


def keep(
    ledger: Ledger,
    root: Path,
    name: str,
    files: Mapping[str, Path],
    told: Mapping[str, Any],
    *,
    now_utc: str,
    variant_id: str | None = None,
) -> dict[str, Any]:
    """Archive a head and enter it; returns its card."""
    card = archive.archive(root, name, files, told, now_utc=now_utc)
    enter(ledger, card, variant_id)
    return card


def enter(ledger: Ledger, card: Mapping[str, Any], variant_id: str | None) -> None:
    """Append the row of an archived head, unless it is there."""
    with ledger.transaction() as writer:
        writer.append_once(
            models.head, "name", name=card["name"], variant_id=variant_id,
            weights_sha256=card["files"][archive.WEIGHTS]["sha256"], card=dict(card),
            created_utc=card["created_utc"],
        )  # fmt: skip
