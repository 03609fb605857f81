"""What a foreign decode log says, as frozen data. Printed numbers are exact fractions.

`line` is the 1-based line of the file. A value that was printed as `inf` or `nan` is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from flywheel.run.refusal import Refusal


@dataclass(frozen=True, slots=True)
class Round:
    """One draft and one verify of `rows` rows; `length` is the sequence after it.

    `margins` are the gaps between the draft's two best logits, one for each drafted slot.
    """

    number: int
    accepted: int
    offered: int
    rows: int
    tokens: int
    time_us: int
    length: int
    margins: tuple[Fraction, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Lossless:
    """The log's own comparison with plain decode; `differs_at` is None where it passed."""

    compared: int
    differs_at: int | None
    plain: int
    spec: int
    line: int


@dataclass(frozen=True, slots=True)
class Point:
    """One speculative decode of one prompt; everything from `generated` on closes it."""

    prompt: int
    prompt_tokens: int
    asked: int
    width: int
    passes: int
    adapt_k: Fraction
    line: int
    rounds: tuple[Round, ...] = ()
    generated: int | None = None
    verifies: int = 0
    tau: Fraction | None = None
    most: int = 0
    first_tokens: tuple[int, ...] = ()
    lossless: Lossless | None = None
    ms_per_token: Fraction | None = None
    tok_s: Fraction | None = None
    base_tok_s: Fraction | None = None
    closed_line: int = 0

    @property
    def complete(self) -> bool:
        """Whether its rate line was printed."""
        return self.closed_line > 0

    @property
    def exact_tau(self) -> Fraction:
        """Committed tokens per target forward, from the counts."""
        return Fraction(self.generated or 0, max(1, self.verifies))


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row of the closing table, as printed."""

    width: int
    passes: int
    adapt_k: Fraction | None
    effective_adapt_k: Fraction | None
    prompt: int
    tau: Fraction | None
    ms_per_token: Fraction | None
    tok_s: Fraction | None
    line: int


@dataclass(frozen=True, slots=True)
class Base:
    """Plain decode of the control prompt: times of its steps, and the rate printed from them."""

    step_us: tuple[int, ...]
    step_tokens: tuple[int, ...]
    first: int | None
    expected: int | None
    first_passed: bool
    tokens: tuple[int, ...]
    ms_per_token: Fraction | None
    tok_s: Fraction | None
    averaged: int
    line: int


@dataclass(frozen=True, slots=True)
class Match:
    """Several rows verified in one forward against the same rows decoded one by one."""

    equal: int
    of: int
    verify: tuple[int, ...]
    decode: tuple[int, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Marker:
    """A line that says how the run was made: an instrument, a sanitizer, a crash, a capture."""

    kind: str
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class DecodeLog:
    """One decode or eval log. `end_line` is 0 when the completion marker is missing.

    `broken` lists lines that are out of shape or out of order, `quoted` lines that only quote a
    gate's words and so count for nothing.
    """

    checkpoint: str
    checked_tokens: int
    loaded: bool
    base: Base
    match: Match | None
    head: str
    planned: tuple[int, ...]
    points: tuple[Point, ...]
    table: tuple[TableRow, ...]
    table_base_tok_s: Fraction | None
    end_line: int
    markers: tuple[Marker, ...]
    broken: tuple[Refusal, ...]
    quoted: tuple[int, ...]
    lines: int

    @property
    def complete_points(self) -> tuple[Point, ...]:
        """Points whose rate line was printed."""
        return tuple(p for p in self.points if p.complete)

    @property
    def open_point(self) -> Point | None:
        """The point that the log ends in, if it does."""
        return next((p for p in self.points if not p.complete), None)

    def marked(self, kind: str) -> tuple[Marker, ...]:
        """Markers of one kind."""
        return tuple(m for m in self.markers if m.kind == kind)
