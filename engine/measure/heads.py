"""Arms that differ in their draft head: one backbone in memory, and a head for each."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.checkpoint import load_draft, shards
from engine.config import EngineConfig
from engine.engine import Engine
from engine.measure.plan import Plan
from engine.weights import Weights

_CHUNK_BYTES = 1 << 22


def sha256(head: Path) -> str:
    """Hash over a head's shards, in order; of a single one it is the file's own."""
    digest = hashlib.sha256()
    for path in shards(head):
        with path.open("rb") as stream:
            while block := stream.read(_CHUNK_BYTES):
                digest.update(block)
    return digest.hexdigest()


def hashes(plan: Plan) -> dict[str, str]:
    """The hash of each arm's own head; arms with the plan's have none."""
    return {arm.name: sha256(arm.head) for arm in plan.arms if arm.head is not None}


def engines(plan: Plan) -> dict[Path | None, Engine]:
    """An engine for every head that an arm drafts with, the first arm's first.

    Under the torch backend they share the backbone's weights; another backend loads them again.
    """
    first = plan.arms[0]
    loaded = Engine.load(plan.checkpoint, first.config, head=first.head or plan.head)
    found: dict[Path | None, Engine] = {first.head: loaded}
    for arm in plan.arms[1:]:
        if arm.head not in found:
            found[arm.head] = _beside(loaded, plan, arm.head or plan.head, arm.config)
    return found


def _beside(loaded: Engine, plan: Plan, head: Path | None, config: EngineConfig) -> Engine:
    if not isinstance(loaded.weights, Weights):
        return Engine.load(plan.checkpoint, config, head=head)
    dtype = loaded.weights.embed.dtype
    draft = load_draft(head or plan.checkpoint, loaded.geometry, dtype=dtype)
    return Engine(loaded.geometry, replace(loaded.weights, draft=draft), config, loaded.cores)


def effective(
    config: EngineConfig, head_sha256: str | None, source_sha256: str | None = None
) -> dict[str, Any]:
    """What an arm is: its resolved configuration; its own head and code where it has them."""
    own = {"head": head_sha256, "source": source_sha256}
    return config.canonical() | {name: value for name, value in own.items() if value is not None}


def fingerprint(resolved: dict[str, Any]) -> str:
    """sha256 over canonical JSON: two arms with one fingerprint are one arm."""
    text = json.dumps(resolved, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
