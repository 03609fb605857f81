"""Levers and sweeps that were declared on this box: one JSON object a line, next to the ledger.

They join the levers of ``experiments``; the identity decides what is a duplicate, never the name.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flywheel.errors import LeverError
from flywheel.files import read_text
from flywheel.lever import Lever, canonical
from flywheel.sweep import Sweep, is_sweep

FILE = "levers.jsonl"
_FIELDS = (
    "name", "kind", "change", "claim", "falsify", "predicted_gain", "ceiling", "hot", "family",
    "metric", "slow", "needs", "share",
)  # fmt: skip
_NUMBER = (int, float)
# What a line may hold. People write it too, and a word in quotes would pass for true.
_TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("name", "kind", "claim", "falsify", "family", "metric", "field"), (str,)),
    **dict.fromkeys(("hot", "slow", "log"), (bool,)),
    **dict.fromkeys(("predicted_gain", "share", "low", "high"), _NUMBER),
    **dict.fromkeys(("needs", "values"), (list,)),
    "change": (dict,), "ceiling": (*_NUMBER, type(None)), "trials": (int,),
}  # fmt: skip


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
        # Only "\n" ends a line: JSON may hold others.
        lines = read_text(path).split("\n")
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise LeverError(f"{path} cannot be read: {error}") from error
    found: dict[str, Lever | Sweep] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            one = _of(json.loads(line))
        except (LeverError, ValueError, TypeError, RecursionError) as error:
            raise LeverError(f"{path} line {number} is no lever: {error}") from error
        if one.name in found:
            raise LeverError(f"{path} line {number}: an earlier line is named {one.name} already")
        found[one.name] = one
    return tuple(found.values())


def _of(body: Any) -> Lever | Sweep:
    """What one line declares; LeverError for a field that means nothing, or is of another type."""
    if not isinstance(body, dict):
        raise LeverError("it is not a JSON object")
    for name, value in body.items():
        if name not in _TYPES:
            raise LeverError(f"it has a field {name!r} that means nothing here")
        kinds = _TYPES[name]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise LeverError(f"its {name} cannot be {json.dumps(value)[:40]}")
    return Sweep(**body) if is_sweep(body) else Lever(**body)


def add(ledger: Path, lever: Lever, known: Sequence[Lever]) -> Path:
    """Append a lever; LeverError when the change, or the name, is declared already."""
    _require_name(lever.name)
    with _held(path_for(ledger)) as file:
        here = _read(ledger)
        for other in (*known, *(one for one in here if isinstance(one, Lever))):
            if other.identity == lever.identity:
                raise LeverError(
                    f"{lever.name} is the same change as {other.name}, declared already"
                )
            if other.name == lever.name:
                raise LeverError(
                    f"a lever named {lever.name} is declared already, for another change"
                )
        if lever.name in {*(one.sweep for one in known), *(one.name for one in here)}:
            raise LeverError(f"a sweep is named {lever.name} already")
        body = {name: getattr(lever, name) for name in _FIELDS}
        _append(file, body | {"change": dict(lever.change), "needs": list(lever.needs)})
    return path_for(ledger)


def add_sweep(ledger: Path, sweep: Sweep, known: Collection[str]) -> Path:
    """Append a sweep; LeverError when its name is that of another sweep or lever."""
    _require_name(sweep.name)
    with _held(path_for(ledger)) as file:
        if sweep.name in {*known, *(one.name for one in _read(ledger))}:
            raise LeverError(f"{sweep.name} is declared already")
        _append(file, sweep.to_json())
    return path_for(ledger)


def _require_name(name: str) -> None:
    """LeverError for a name that the priority file could not say in one line."""
    if not name.isprintable() or "#" in name:
        raise LeverError(f"the name {name!a} holds what no line of PRIORITY can: give it another")


@contextmanager
def _held(path: Path) -> Iterator[int]:
    """The file to append to, while nobody else declares anything."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def _append(fd: int, body: Mapping[str, object]) -> None:
    """A whole line of its own, or none: an editor may have left the last one without its end."""
    size = os.fstat(fd).st_size
    apart = "\n" if size and os.pread(fd, 1, size - 1) != b"\n" else ""
    line = f"{apart}{canonical(body)}\n".encode()
    try:
        if os.write(fd, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        os.ftruncate(fd, size)
        raise


def value_of(text: str) -> object:
    """``5``, ``0.25``, ``true``, ``null`` as JSON says; anything else is a word."""
    try:
        value: object = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(value, dict | list) else value
