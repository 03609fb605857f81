"""One notice: what happened, in a line for people and as facts for programs. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

PROMOTION, HALT, END, GUARD_KILL, TEST = "promotion", "halt", "end", "guard_kill", "test"
EVENTS = (PROMOTION, HALT, END, GUARD_KILL, TEST)


@dataclass(frozen=True, slots=True)
class Notice:
    """`event` is one of EVENTS, `text` one line, `facts` plain JSON."""

    event: str
    text: str
    box: str
    ledger: str
    when_utc: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.event not in EVENTS:
            raise ValueError(f"{self.event!r} is no event that is told")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; `text` and `content` are what chat services show of it."""
        return {**asdict(self), "content": self.line}

    @property
    def line(self) -> str:
        """The text as a person gets it who has more than one box."""
        return f"flywheel on {self.box}: {self.text}"

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Notice:
        """Inverse of `to_json`; KeyError when something is missing."""
        return cls(
            value["event"], value["text"], value["box"], value["ledger"], value["when_utc"],
            value["facts"],
        )
