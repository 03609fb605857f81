"""What a server serves: the file that the optimisation loop leaves, under the command line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.errors import ConfigError

EMBEDDED = Path(__file__).parents[1] / "assets" / "tiny-v4"
MEMORY_BYTES = 256 << 20
CAPACITY = 4


@dataclass(frozen=True, slots=True)
class Deployment:
    """One checkpoint, one draft head, one configuration, and the decision that chose it."""

    name: str
    checkpoint: Path
    head: Path | None
    config: EngineConfig
    decision: int | str | None = None
    memory_bytes: int = MEMORY_BYTES  # for beginnings of prompts; 0 keeps none
    about: Path | None = None  # what the loop tells of its choice, for the page that shows it
    capacity: int = CAPACITY  # replies generated together

    @classmethod
    def load(
        cls,
        path: Path | None,
        *,
        checkpoint: Path | None = None,
        head: Path | None = None,
        name: str | None = None,
        memory_bytes: int = MEMORY_BYTES,
        about: Path | None = None,
        capacity: int = CAPACITY,
    ) -> Deployment:
        """Read a best.json; the other arguments replace what it says.

        Without a checkpoint from either, the embedded one is served. Raises ConfigError.
        """
        raw = _read(path) if path is not None else {"config": {}}
        folder = path.parent if path is not None else Path()
        chosen = checkpoint or _folder(raw, "checkpoint", folder) or EMBEDDED
        chosen_head = head or _folder(raw, "head", folder)
        for kind, place in (("checkpoint", chosen), ("head", chosen_head)):
            if place is not None and not place.is_dir():
                raise ConfigError(f"The {kind} folder {place} does not exist.")
        config = EngineConfig.parse(raw["config"])
        if config.acceptance != "exact":
            raise ConfigError(
                f"acceptance {config.acceptance!r} is lossy: it is measured, and never served."
            )
        return cls(
            name=name or chosen.resolve().name,
            checkpoint=chosen,
            head=chosen_head,
            config=config,
            decision=_decision(raw),
            memory_bytes=memory_bytes,
            about=about,
            capacity=capacity,
        )

    def check_swap(self, wanted: Deployment) -> None:
        """ConfigError when `wanted` cannot take this one's place in the same process."""
        for kind in ("checkpoint", "head", "name"):
            if (mine := getattr(self, kind)) != (theirs := getattr(wanted, kind)):
                raise ConfigError(f"Another {kind} needs a restart: {theirs} instead of {mine}.")


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror or error}.") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(raw, dict) or not isinstance(raw.get("config"), dict):
        raise ConfigError(f'{path} must hold a JSON object with an object "config".')
    return raw


def _folder(raw: dict[str, Any], field: str, base: Path) -> Path | None:
    """A folder as it is written, or else beside the file that names it."""
    value = raw.get(field)
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise ConfigError(f'"{field}" must be the path of a folder or null; got {value!r}.')
    path = Path(value)
    return path if path.exists() else base / path


def _decision(raw: dict[str, Any]) -> int | str | None:
    """The decision behind the configuration: named, or the last of all that led to it."""
    decision = raw.get("decision")
    if decision is None and isinstance(raw.get("decisions"), list) and raw["decisions"]:
        decision = raw["decisions"][-1]
    return decision if isinstance(decision, int | str) else None
