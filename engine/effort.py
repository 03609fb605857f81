"""How a checkpoint is told to think harder: a paragraph before everything else, by level.

The paragraphs are the checkpoint's own, written in the encoder that it ships. They are read from
its source and never run. A revision with two of them says the milder one at `high` and the other
at `max`; one with a single paragraph (the preview) says it at `max` alone; one without any does
not tell the levels apart.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.errors import CheckpointError

Level = Literal["low", "high", "max"]
_OPENING = "Reasoning Effort: "
_STRONGEST = "Beyond maximum"


@dataclass(frozen=True, slots=True)
class Efforts:
    """The paragraph of each level; empty where a level has none."""

    high: str = ""
    max: str = ""

    @classmethod
    def load(cls, checkpoint: Path) -> Efforts:
        """Read `encoding/*.py` of a checkpoint folder; raises CheckpointError."""
        found: set[str] = set()
        for path in sorted((checkpoint / "encoding").glob("*.py")):
            try:
                found |= _paragraphs(path.read_text(encoding="utf-8"))
            except (OSError, ValueError, SyntaxError) as error:
                raise CheckpointError(f"The encoder {path} cannot be read: {error}.") from None
        beyond = [text for text in found if text[len(_OPENING) :].startswith(_STRONGEST)]
        milder = sorted(found.difference(beyond))
        if len(beyond) > 1 or len(milder) > 1:
            raise CheckpointError(
                f"{checkpoint / 'encoding'} holds {len(found)} paragraphs about effort; two at"
                " most can be told apart."
            )
        if beyond:
            return cls(high="".join(milder), max=beyond[0])
        return cls(max="".join(milder))

    def paragraph(self, level: Level) -> str:
        """What a prompt that opens with reasoning at `level` begins with."""
        return {"low": "", "high": self.high, "max": self.max}[level]


def _paragraphs(source: str) -> set[str]:
    """Every text in Python `source` that reads like one."""
    texts = (
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return {text for text in texts if text.startswith(_OPENING)}
