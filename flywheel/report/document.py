"""The report as pure data: terminal, HTML and JSON are rendered from this and so agree.

Each printed figure is built here once, as text beside its numbers, with the runs it came from.
A band's end that nothing bounds is None, and `unbounded` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from flywheel.report.detail import Detail
from flywheel.report.evidence import Evidence
from flywheel.report.imported import ImportedLine
from flywheel.report.trace import Trace
from flywheel.report.words import sample

if TYPE_CHECKING:
    # The page draws with this package's plots.
    from flywheel.width.page import WidthPage


@dataclass(frozen=True, slots=True)
class Figure:
    """One printed number: its text, its value with its band where it has one, and its runs."""

    text: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    runs: tuple[str, ...] = ()
    unbounded: bool = False


@dataclass(frozen=True, slots=True)
class BlockLine:
    """One block: `gain` and `within` are fractions of time, `level` the incumbent's own figure.

    `level` is ms/token, or tau where `metric` says so. A void block has a code and no numbers; a
    screen has the sentences that it ended with in their place.
    """

    id: str
    number: int
    hot: bool
    ended_utc: str
    runs: tuple[str, ...]
    metric: str = ""
    gain: float | None = None
    within: float | None = None
    level: float | None = None
    void_code: str | None = None
    void_detail: str = ""
    screened: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One decided lever. Gains are fractions of time saved; None where nothing bounds them.

    Where `metric` is tau they are fractions of the target's forwards, which a head saves.
    """

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
    unbounded: bool = False
    measured: tuple[BlockLine, ...] = ()
    metric: str = ""

    @property
    def sample(self) -> str:
        """What the decision stands on: `3 blocks`, or a screen, or nothing measured."""
        return sample(self.blocks, measured=self.mean is not None)


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
class HaltLine:
    """A halt that stands: nothing runs until someone resumes."""

    code: str
    reason: str
    run: str | None
    created_utc: str


@dataclass(frozen=True, slots=True)
class FaultLine:
    """What broke while clients were served."""

    said: str
    decision: int | None
    at_utc: str


@dataclass(frozen=True, slots=True)
class QueueLine:
    """A lever that waits, with what speaks for it."""

    name: str
    label: str
    why: str


@dataclass(frozen=True, slots=True)
class Cost:
    """What the period cost. `wall_s` runs from the first start to the last end.

    `per_decided` is loads of any purpose for each lever decided; None when none was. `trained_s`
    adds up what each of the `heads` took, side by side or not.
    """

    text: str
    wall_s: float
    engine_s: float
    loads: int
    void_loads: int
    void_s: float
    decided: int
    per_decided: float | None
    energy_j: float | None
    heads: int = 0
    trained_s: float = 0.0

    @property
    def engine_share(self) -> float | None:
        """The share of the time that was spent in engine runs; None where no time passed."""
        return min(1.0, self.engine_s / self.wall_s) if self.wall_s > 0 else None


@dataclass(frozen=True, slots=True)
class RunLine:
    """A run as listed at the end: where its log lies and what it was for."""

    id: str
    block: str
    variant: str
    purpose: str
    label: str
    outcome: str
    code: str
    detail: str
    started_utc: str
    wall_s: float
    log: str
    sha256: str
    repeat: str


@dataclass(frozen=True, slots=True)
class Document:
    """Everything that the report says.

    `evidence`, by run, and `width` are there for the HTML form only.
    """

    title: str
    since_utc: str | None
    canaries: Figure
    incumbent: Figure
    gain: Figure
    cost: Cost
    halts: tuple[HaltLine, ...]
    budget: str
    rows: tuple[Row, ...]
    voids: tuple[VoidRow, ...]
    findings: tuple[FindingLine, ...]
    next: str
    queue: tuple[QueueLine, ...]
    config: Mapping[str, Any]
    first_config: Mapping[str, Any]
    trace: Trace
    detail: Detail | None
    runs: tuple[RunLine, ...]
    notes: tuple[str, ...] = ()
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    imported: tuple[ImportedLine, ...] = ()
    width: WidthPage | None = None
    faults: tuple[FaultLine, ...] = ()

    def of(self, ending: str) -> tuple[Row, ...]:
        """Levers with that ending; canaries have their own line."""
        return tuple(r for r in self.rows if r.ending == ending and not r.null)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON, for `--json`; `decisions` is every row with its canary flag."""
        body = asdict(self)
        body["decisions"] = [{**row, "canary": row["null"]} for row in body["rows"]]
        return body
