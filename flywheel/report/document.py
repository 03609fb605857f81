"""The report as pure data: terminal, HTML and JSON are rendered from this and so agree.

Each printed figure is built here once, as text beside its numbers, with the runs it came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from flywheel.report.detail import Detail


@dataclass(frozen=True, slots=True)
class Figure:
    """One printed number: its text, its value with its band where it has one, and its runs."""

    text: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    runs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One decided lever. Gains are fractions of time saved; None where nothing bounds them."""

    decision: int
    findings: tuple[int, ...]
    label: str
    name: str
    ending: str
    code: str
    said: str
    mean: float | None
    low: float | None
    high: float | None
    blocks: int
    predicted: float
    runs: tuple[str, ...]
    superseded_by: int | None = None
    null: bool = False


@dataclass(frozen=True, slots=True)
class VoidRow:
    """A void block, and what came of it."""

    block: str
    label: str
    code: str
    detail: str
    after: str
    runs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FindingLine:
    """A finding as printed."""

    number: int
    date: str
    sentence: str
    runs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunLine:
    """A run as listed at the end: where its log lies and what it was for."""

    id: str
    block: str
    variant: str
    purpose: str
    outcome: str
    code: str
    wall_s: float
    log: str
    sha256: str
    repeat: str


@dataclass(frozen=True, slots=True)
class Step:
    """The incumbent after a promotion: log gain over the start added up, for the plot only."""

    decision: int
    label: str
    date: str
    gain: float


@dataclass(frozen=True, slots=True)
class Document:
    """Everything that the report says."""

    title: str
    canaries: Figure
    incumbent: Figure
    gain: Figure
    budget: str
    rows: tuple[Row, ...]
    voids: tuple[VoidRow, ...]
    findings: tuple[FindingLine, ...]
    next: str
    config: Mapping[str, Any]
    first_config: Mapping[str, Any]
    timeline: tuple[Step, ...]
    detail: Detail | None
    runs: tuple[RunLine, ...]
    notes: tuple[str, ...] = field(default=())

    def of(self, ending: str) -> tuple[Row, ...]:
        """Levers with that ending; canaries have their own line."""
        return tuple(r for r in self.rows if r.ending == ending and not r.null)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON, for `--json`; `decisions` is every row with its canary flag."""
        body = asdict(self)
        body["decisions"] = [{**row, "canary": row["null"]} for row in body["rows"]]
        return body
