"""What decodes, named the same wherever it is told: by a measuring run, and by the server.

A checkpoint is named by its own files alone. A draft head that is installed beside it is part of
what is done with the checkpoint, so it counts in the fingerprint, under its own hash.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.checkpoint import shards
from engine.config import EngineConfig

_CHUNK_BYTES = 1 << 22


def head_sha256(head: Path | None) -> str | None:
    """Hash over a head's shards, in order; of a single one it is the file's own. None for None.

    Raises CheckpointError where the folder holds no head.
    """
    if head is None:
        return None
    digest = hashlib.sha256()
    for path in shards(head):
        with path.open("rb") as stream:
            while block := stream.read(_CHUNK_BYTES):
                digest.update(block)
    return digest.hexdigest()


def effective(config: EngineConfig, head: str | None, source: str | None = None) -> dict[str, Any]:
    """A resolved configuration, and the hashes of a head and of code of its own."""
    own = {"head": head, "source": source}
    return config.canonical() | {name: value for name, value in own.items() if value is not None}


def fingerprint(resolved: Mapping[str, Any]) -> str:
    """sha256 over canonical JSON: what has one fingerprint is one arm."""
    text = json.dumps(dict(resolved), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
