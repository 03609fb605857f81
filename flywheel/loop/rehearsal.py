"""Has this recipe been tried at toy scale on this box, with this code, from these inputs?

A stage that fails does so within a minute then, and not in the last hour of a night. A rehearsal is
kept beside the ledger under a name made of all that it answers for, and is not repeated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flywheel import suite
from flywheel.box import device
from flywheel.lever import canonical, fingerprint
from flywheel.loop.order import HeadOrder

FOLDER, NAME = "rehearsals", "rehearse"


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the stages of one head start from."""

    checkpoint: str
    heads: HeadOrder
    recipe: Mapping[str, object]
    start: Path | None
    engine: Mapping[str, object] = field(default_factory=dict)  # the configuration that speaks

    def words(self, out: Path, captured: Path | None) -> tuple[str, ...]:
        """The options of the command that rehearses all stages, or the training on a capture."""
        begun = () if self.start is None else ("--head", str(self.start))
        given = () if captured is None else ("--capture", str(captured))
        return (
            "--checkpoint", self.checkpoint, "--device", self.heads.device, "--lease-held",
            "--config", canonical(dict(self.engine)),
            "--out", str(out), "--recipe", canonical(dict(self.recipe)),
            "--temperature", f"{self.heads.temperature:g}", *begun, *given,
        )  # fmt: skip

    def key(self, captured: Path | None) -> str:
        """What one rehearsal answers for: inputs, recipe, device and code."""
        return fingerprint([
            self.checkpoint, dict(self.recipe), None if self.start is None else str(self.start),
            self.heads.temperature, self.heads.device, device.key(), list(self.heads.command),
            code_sha256(), None if captured is None else str(captured), dict(self.engine),
        ])[:16]  # fmt: skip


def code_sha256() -> str:
    """Hash over the engine's source files: other code has not been rehearsed."""
    digest = hashlib.sha256()
    root = suite.engine_assets().parent
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
