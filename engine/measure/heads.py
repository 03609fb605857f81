"""Arms that differ in their draft head: one backbone in memory, and a head for each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from engine.checkpoint import load_draft
from engine.config import EngineConfig
from engine.engine import Engine
from engine.identity import head_sha256
from engine.measure.plan import Plan
from engine.weights import Weights


def hashes(plan: Plan) -> dict[str, str]:
    """The hash of each arm's own head; arms with the plan's have none."""
    found = {arm.name: head_sha256(arm.head) for arm in plan.arms}
    return {name: sha256 for name, sha256 in found.items() if sha256 is not None}


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
