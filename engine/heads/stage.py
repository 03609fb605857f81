"""A stage's folder: what it was asked for, how it ended, and a card that later stages check.

A stage that was interrupted is called again with the same request and goes on; with another request
it is refused. `card.json` is written at every end, with one of four outcomes.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from engine.errors import EngineError
from engine.train.card import sha256

CARD, ASKED = "card.json", "asked.json"
OUTCOMES = ("ok", "refused", "stopped", "failed")


class StageRefused(EngineError):  # noqa: N818 - reads as the fact that it is
    """A stage found its input, its own output or the machine unfit, and says which."""


class Stage:
    """One stage in one folder, as a context: whatever leaves it is written down as its outcome."""

    def __init__(self, folder: Path, name: str, asked: Mapping[str, Any]) -> None:
        self.folder, self.name = folder, name
        self.asked = json.loads(json.dumps(asked, default=str))
        self._began_s = time.monotonic()
        self._finished = False

    @property
    def done(self) -> bool:
        """Whether this very request was carried out before, and its files are still there."""
        card = _read(self.folder / CARD)
        return (
            card is not None
            and card["outcome"] == "ok"
            and card["asked"] == self.asked
            and all((self.folder / name).is_file() for name in card["files"])
        )

    def __enter__(self) -> Stage:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StageRefused(
                f"{self.folder} cannot be made a folder for the stage: {error.strerror}."
            ) from None
        before = _read(self.folder / ASKED)
        if before is not None and before != self.asked:
            field = next(k for k in {**before, **self.asked} if before.get(k) != self.asked.get(k))
            raise StageRefused(
                f"{self.folder} was begun with another {field} ({before.get(field)!r}, now "
                f"{self.asked.get(field)!r}); give the new request a folder of its own."
            )
        write_json(self.folder / ASKED, self.asked)
        return self

    def finish(self, files: tuple[str, ...], facts: Mapping[str, Any]) -> None:
        """Write the card of a stage that did what it was asked for."""
        self._card("ok", None, facts, files)
        self._finished = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or self._finished:
            return
        interrupted = isinstance(error, KeyboardInterrupt)
        refused = isinstance(error, EngineError)
        outcome = "stopped" if interrupted else "refused" if refused else "failed"
        self._card(outcome, str(error) or type(error).__name__, {}, ())

    def _card(
        self, outcome: str, reason: str | None, facts: Mapping[str, Any], files: tuple[str, ...]
    ) -> None:
        write_json(
            self.folder / CARD,
            {
                "stage": self.name, "outcome": outcome, "reason": reason, "asked": self.asked,
                "seconds": round(time.monotonic() - self._began_s, 3), "facts": dict(facts),
                "files": {
                    name: {
                        "bytes": (self.folder / name).stat().st_size,
                        "sha256": sha256(self.folder / name),
                    }
                    for name in files
                },
            },
        )  # fmt: skip


def require(folder: Path, name: str) -> dict[str, Any]:
    """The card of a finished stage, its files proved by hash; StageRefused says what is wrong."""
    card = _read(folder / CARD)
    if card is None or card.get("stage") != name:
        raise StageRefused(f"{folder} holds no finished stage {name}.")
    if card["outcome"] != "ok":
        said = f"ended {card['outcome']}: {card['reason']}"
        raise StageRefused(f"The stage {name} in {folder} {said}")
    for file, known in card["files"].items():
        path = folder / file
        if not path.is_file():
            raise StageRefused(f"The stage {name} in {folder} lost its file {file}.")
        if sha256(path) != known["sha256"]:
            raise StageRefused(f"{path} is not the file that the stage {name} wrote.")
    return card


def require_room(folder: Path, needed_bytes: int, name: str) -> None:
    """StageRefused when the folder's disk has less than `needed_bytes` and a tenth more."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < needed_bytes * 1.1:
        raise StageRefused(
            f"The stage {name} needs about {needed_bytes / 2**20:.0f} MiB in {folder}; "
            f"{free / 2**20:.0f} MiB are free."
        )


def write_json(path: Path, value: Any) -> None:
    """Replace a file by JSON, whole."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(path)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
