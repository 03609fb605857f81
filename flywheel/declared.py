"""Levers that were declared on this box: one JSON object a line, next to the ledger.

They join the levers of ``experiments``; the identity decides what is a duplicate, never the name.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from flywheel.errors import LeverError
from flywheel.lever import Lever, canonical

FILE = "levers.jsonl"
_FIELDS = (
    "name", "kind", "change", "claim", "falsify", "predicted_gain", "ceiling", "hot", "family",
    "metric", "needs",
)  # fmt: skip


def path_for(ledger: Path) -> Path:
    """Where the declared levers of a ledger lie."""
    return ledger.parent / FILE


def read(ledger: Path) -> tuple[Lever, ...]:
    """Every lever declared here; LeverError names the line that is none."""
    path = path_for(ledger)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise LeverError(f"{path} cannot be read: {error}") from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            body = json.loads(line)
            found.append(Lever(**body))
        except (ValueError, TypeError, AttributeError) as error:
            raise LeverError(f"{path} line {number} is no lever: {error}") from error
    return tuple(found)


def add(ledger: Path, lever: Lever, known: Sequence[Lever]) -> Path:
    """Append a lever; LeverError when the change, or the name, is declared already."""
    for other in known:
        if other.identity == lever.identity:
            raise LeverError(f"{lever.name} is the same change as {other.name}, declared already")
        if other.name == lever.name:
            raise LeverError(f"a lever named {lever.name} is declared already, for another change")
    path = path_for(ledger)
    body = {name: getattr(lever, name) for name in _FIELDS}
    body |= {"change": dict(lever.change), "needs": list(lever.needs)}
    with path.open("a", encoding="utf-8") as stream:
        stream.write(canonical(body) + "\n")
    return path


def value_of(text: str) -> object:
    """``5``, ``0.25``, ``true``, ``null`` as JSON says; anything else is a word."""
    try:
        value: object = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(value, dict | list) else value
