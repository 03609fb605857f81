"""The transcript of an attempt: all that was said, in a file whose hash the ledger knows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flywheel.files import dump, write_atomic
from flywheel.ledger.rows import AttemptRow

FOLDER, FILE = "proposals", "transcript.json"
# A shorter value is too common a text to be taken for a secret wherever it stands.
_SECRET = 6


def write(folder: Path, document: Mapping[str, Any], secrets: Mapping[str, str]) -> str:
    """Write it into an attempt's folder; returns its sha256.

    The value of every variable that was handed over is replaced by the variable's name.
    """
    text = dump(without(document, secrets))
    write_atomic(folder / FILE, text, mode=0o600)
    return hashlib.sha256(text.encode()).hexdigest()


def without(value: Any, secrets: Mapping[str, str]) -> Any:
    """The value with every secret, plain or as JSON has it, replaced by `[NAME]`. Pure."""
    if isinstance(value, str):
        # The longest first: one may hold another.
        for name, secret in sorted(secrets.items(), key=lambda one: -len(one[1])):
            if len(secret) >= _SECRET:
                for form in (secret, json.dumps(secret)[1:-1]):
                    value = value.replace(form, f"[{name}]")
        return value
    if isinstance(value, Mapping):
        return {str(key): without(one, secrets) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [without(one, secrets) for one in value]
    return value


def state(ledger: Path, row: AttemptRow) -> str:
    """Whether an attempt's transcript is `whole`, `changed` or `missing`."""
    try:
        content = (ledger.parent / row.transcript).read_bytes()
    except OSError:
        return "missing"
    return "whole" if hashlib.sha256(content).hexdigest() == row.sha256 else "changed"
