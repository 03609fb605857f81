"""Levers and sweeps that were declared on this box: one JSON object a line, next to the ledger.

They join the levers of ``experiments``; the identity decides what is a duplicate, never the name.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from flywheel.errors import LeverError
from flywheel.lever import Lever, canonical
from flywheel.sweep import Sweep, is_sweep

FILE = "levers.jsonl"
_FIELDS = (
    "name", "kind", "change", "claim", "falsify", "predicted_gain", "ceiling", "hot", "family",
    "metric", "slow", "needs", "share",
)  # fmt: skip


def path_for(ledger: Path) -> Path:
    """Where the declared levers of a ledger lie."""
    return ledger.parent / FILE


def read(ledger: Path) -> tuple[Lever, ...]:
    """Every single lever declared here; LeverError names the line that is none."""
    return tuple(one for one in _read(ledger) if isinstance(one, Lever))


def sweeps(ledger: Path) -> tuple[Sweep, ...]:
    """Every sweep declared here; LeverError as of `read`."""
    return tuple(one for one in _read(ledger) if isinstance(one, Sweep))


def _read(ledger: Path) -> tuple[Lever | Sweep, ...]:
    path = path_for(ledger)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise LeverError(f"{path} cannot be read: {error}") from error
    found: list[Lever | Sweep] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            body = json.loads(line)
            found.append(Sweep(**body) if is_sweep(body) else Lever(**body))
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
    body = {name: getattr(lever, name) for name in _FIELDS}
    return _append(ledger, body | {"change": dict(lever.change), "needs": list(lever.needs)})


def add_sweep(ledger: Path, sweep: Sweep, known: Sequence[str]) -> Path:
    """Append a sweep; LeverError when its name is that of another sweep or lever."""
    if sweep.name in known:
        raise LeverError(f"{sweep.name} is declared already")
    return _append(ledger, sweep.to_json())


def _append(ledger: Path, body: dict[str, object]) -> Path:
    path = path_for(ledger)
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
