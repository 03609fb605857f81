"""Which configuration is served: the ledger's best, one of its earlier ones, or a file's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flywheel import best
from flywheel.errors import UsageError
from flywheel.files import dump, read_json, write_atomic
from flywheel.ledger.rows import View
from flywheel.lever import fingerprint

FILE = "served.json"


@dataclass(frozen=True, slots=True)
class Chosen:
    """A configuration with its checkpoint, and the promotions that made it (none for a file's)."""

    config: Mapping[str, Any]
    checkpoint: Path
    head: str | None = None
    promotions: tuple[int, ...] = ()
    why: str = "the best so far"

    @property
    def decision(self) -> int | None:
        """The decision that made it; None for the first configuration and for a file's."""
        return self.promotions[-1] if self.promotions else None

    @property
    def label(self) -> str:
        """`D3, the best so far`."""
        return self.why if self.decision is None else f"D{self.decision}, {self.why}"

    @property
    def whole(self) -> dict[str, Any]:
        """The configuration with the name of its head, as the ledger has it."""
        return {**self.config, **({} if self.head is None else {"head": Path(self.head).name})}

    def write(self, folder: Path) -> Path:
        """Leave the file that the server reads in a folder."""
        body = {
            "checkpoint": str(self.checkpoint),
            "head": self.head,
            "config": dict(self.config),
            "fingerprint": fingerprint(self.whole),
            "decisions": list(self.promotions),
            "decision": self.decision,
        }
        path = folder / FILE
        write_atomic(path, dump(body))
        return path


def of_ledger(view: View, checkpoint: Path, heads: Path, at: int | None = None) -> Chosen:
    """The best of a history, or the best as it stood right after decision `at`.

    `heads` is the archive that its draft head lies in.
    """
    if at is None:
        found = best.fold(view)
        why = "the best so far" if found.promotions else "the first configuration"
        return _chosen(found, checkpoint, heads, why)
    if at not in {decision.number for decision in view.decisions}:
        raise UsageError(f"the ledger has no decision D{at}; flywheel report lists them.")
    found = best.fold(view.as_of(at))
    return _chosen(found, checkpoint, heads, f"the best as it stood after D{at}")


def of_file(path: Path, checkpoint: Path) -> Chosen:
    """What a file like best.json names; its own checkpoint and head where it has them."""
    body = read_json(path)
    if body is None or not isinstance(body.get("config"), dict):
        raise UsageError(f'{path} is no JSON object with an object "config", as best.json is.')
    for field in ("checkpoint", "head"):
        if not isinstance(body.get(field), str | None):
            raise UsageError(f'"{field}" in {path} must be a folder or null.')
    named = body.get("checkpoint")
    return Chosen(
        body["config"],
        checkpoint if named is None else (path.parent / named).expanduser().resolve(),
        body.get("head"),
        why=f"the configuration in {path.name}",
    )


def _chosen(found: best.Best, checkpoint: Path, heads: Path, why: str) -> Chosen:
    name = found.config.get("head")
    if (patch := found.config.get("patch")) is not None:
        # What is hosted is the code that is installed: no patch comes to clients by itself.
        why += f", with the code as installed: flywheel best --checkout tells how to take {patch}"
    return Chosen(
        best.engine_part(found.config),
        checkpoint,
        None if name is None else str(heads / str(name)),
        found.promotions,
        why,
    )


def decision_number(text: str) -> int:
    """`D7` or `7`; UsageError for anything else."""
    digits = text.strip().removeprefix("D").removeprefix("d")
    if not digits.isdecimal():
        raise UsageError(f"--at wants a decision such as D7, not {text!r}.")
    return int(digits)
