"""Lines of a foreign decode log in, a DecodeLog out. Total: whatever the lines are, no exception.

Structure is proved here (what may follow what); sums and rates are `laws`, worth is `admission`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import TypeVar

from flywheel.foreign import shape
from flywheel.foreign.record import (
    Base,
    DecodeLog,
    Lossless,
    Marker,
    Match,
    Point,
    Round,
    TableRow,
)
from flywheel.run.refusal import Refusal

# More of one kind would only repeat the first.
_KEPT = 20
_MOST_POINTS = 10_000
_MOST_ROUNDS = 1_000_000

# The order in which the lines of a log come; equal ranks may repeat only where `_REPEATS` says so.
_RANK = {
    "loading": 1, "loaded": 2, "step": 3, "first": 4, "generated": 5, "warm": 6, "verify_ids": 7,
    "decode_ids": 8, "match": 9, "external": 10, "embedded": 10, "plan": 11, "point": 12,
    "margins": 12, "round": 12, "counts": 12, "tokens": 12, "lossless": 12, "rate": 12,
    "table": 13, "row": 14, "end": 15,
}  # fmt: skip
_REPEATS = frozenset({3, 12, 14})
# What may come next inside a point, by the last line of it.
_INSIDE = {
    "point": ("margins", "round"),
    "margins": ("round",),
    "round": ("margins", "round", "counts"),
    "counts": ("tokens",),
    "tokens": ("lossless", "rate"),
    "lossless": ("rate",),
    "rate": ("point",),
    "": ("point",),
}

_Item = TypeVar("_Item")
_Handler = Callable[["Reader", re.Match[str], int], None]


class Reader:
    """Takes lines one by one; `log()` is what they said. Memory grows with rounds, not text."""

    def __init__(self) -> None:
        self._rank = 0
        self._inside = ""
        self._lines = 0
        self._rounds = 0
        self._margins: tuple[Fraction, ...] = ()
        self._rows_announced: int | None = None
        self._steps: list[tuple[int, int]] = []
        self._first: tuple[int, int, bool] | None = None
        self._generated: tuple[int, ...] = ()
        self._warm: tuple[Fraction | None, Fraction | None, int, int] | None = None
        self._verify: tuple[int, ...] = ()
        self._decode: tuple[int, ...] = ()
        self._match: tuple[int, int, int] | None = None
        self._head = ""
        self._checkpoint = ""
        self._checked = 0
        self._loaded = False
        self._planned: tuple[int, ...] = ()
        self._points: list[Point] = []
        self._open_rounds: list[Round] = []
        self._table: list[TableRow] = []
        self._table_base: Fraction | None = None
        self._end = 0
        self._markers: list[Marker] = []
        self._broken: list[Refusal] = []
        self._quoted: list[int] = []

    def feed(self, line: int, text: str) -> None:
        """One line, without its newline."""
        self._lines = line
        if (kind := shape.marker(text)) is not None:
            self._mark(kind, text, line)
            return
        found = shape.find(text)
        if found is None:
            if shape.quotes(text):
                _keep(self._quoted, line)
            return
        claimed, match = found
        if match is None:
            self._break("malformed_line", f"a {claimed.name} line is cut or changed", line)
        elif self._follows(claimed.name, line):
            _HANDLERS[claimed.name](self, match, line)

    def log(self) -> DecodeLog:
        """Everything read so far."""
        points = list(self._points)
        if points and not points[-1].complete:
            points[-1] = replace(points[-1], rounds=tuple(self._open_rounds))
        first, expected, passed = self._first or (None, None, False)
        ms, rate, averaged, at = self._warm or (None, None, 0, 0)
        return DecodeLog(
            checkpoint=self._checkpoint,
            checked_tokens=self._checked,
            loaded=self._loaded,
            base=Base(
                tuple(us for us, _ in self._steps), tuple(t for _, t in self._steps),
                first, expected, passed, self._generated, ms, rate, averaged, at,
            ),
            match=None if self._match is None else Match(
                self._match[0], self._match[1], self._verify, self._decode, self._match[2]
            ),
            head=self._head,
            planned=self._planned,
            points=tuple(points),
            table=tuple(self._table),
            table_base_tok_s=self._table_base,
            end_line=self._end,
            markers=tuple(self._markers),
            broken=tuple(self._broken),
            quoted=tuple(self._quoted),
            lines=self._lines,
        )  # fmt: skip

    def _follows(self, name: str, line: int) -> bool:
        rank = _RANK[name]
        late = rank < self._rank or (rank == self._rank and rank not in _REPEATS)
        if late or (name != "loading" and self._rank == 0):
            self._break("out_of_order", f"a {name} line where none can be", line)
            return False
        if rank == 12:
            if name not in _INSIDE[self._inside]:
                self._break("out_of_order", f"a {name} line after {self._inside or 'no point'}",
                            line)
                return False
            self._inside = name
        elif rank > 12 and self._inside != "rate":
            self._break("out_of_order", f"a {name} line inside an open point", line)
        self._rank = rank
        return True

    def _mark(self, kind: str, text: str, line: int) -> None:
        known = [m for m in self._markers if m.kind == kind]
        if len(known) < _KEPT or kind == "crash":
            _keep(self._markers, Marker(kind, text[:200], line), 10 * _KEPT)

    def _break(self, code: str, detail: str, line: int) -> None:
        _keep(self._broken, Refusal(code, detail, line))

    def _number(self, text: str, line: int) -> Fraction | None:
        value = shape.fraction(text)
        if value is None:
            self._break("impossible_rate", f"a rate or time was printed as {text}", line)
        return value

    def _time_us(self, text: str, line: int) -> int:
        value = self._number(text, line)
        return 0 if value is None else round(value * 1000)

    def _loading(self, m: re.Match[str], _line: int) -> None:
        self._checkpoint, self._checked = m[1], int(m[3])

    def _has_loaded(self, _m: re.Match[str], _line: int) -> None:
        self._loaded = True

    def _step(self, m: re.Match[str], line: int) -> None:
        if int(m[1]) != len(self._steps):
            self._break("out_of_order", f"step {m[1]} is not the next one", line)
        _keep(self._steps, (self._time_us(m[4], line), int(m[3])), 10_000)

    def _first_token(self, m: re.Match[str], _line: int) -> None:
        self._first = (int(m[1]), int(m[2]), m[3] == "PASS")

    def _base_tokens(self, m: re.Match[str], _line: int) -> None:
        self._generated = shape.ids(m[1])

    def _base_rate(self, m: re.Match[str], line: int) -> None:
        self._warm = (self._number(m[1], line), self._number(m[2], line), int(m[3]), line)

    def _verify_ids(self, m: re.Match[str], _line: int) -> None:
        self._verify = shape.ids(m[1])

    def _decode_ids(self, m: re.Match[str], _line: int) -> None:
        self._decode = shape.ids(m[1])

    def _matched(self, m: re.Match[str], line: int) -> None:
        self._match = (int(m[1]), int(m[2]), line)

    def _external(self, m: re.Match[str], _line: int) -> None:
        self._head = f"external {m[1]}"

    def _embedded(self, _m: re.Match[str], _line: int) -> None:
        self._head = "embedded"

    def _plan(self, m: re.Match[str], _line: int) -> None:
        self._planned = shape.ids(m[3])

    def _opens(self, m: re.Match[str], line: int) -> None:
        self._open_rounds = []
        point = Point(int(m[5]), int(m[6]), int(m[1]), int(m[2]), int(m[3]), Fraction(m[4]), line)
        if len(self._points) >= _MOST_POINTS:
            self._break("too_many_points", f"more than {_MOST_POINTS} points", line)
        _keep(self._points, point, _MOST_POINTS)

    def _margin(self, m: re.Match[str], line: int) -> None:
        words = m[1].split()
        if len(words) > 64:
            self._break("malformed_line", "a margins line has more than 64 slots", line)
        self._margins = tuple(self._number(w, line) or Fraction() for w in words[:64])
        self._rows_announced = int(m[2])

    def _round(self, m: re.Match[str], line: int) -> None:
        if self._rows_announced not in (None, int(m[4])):
            self._break("inconsistent", f"K={m[4]}, but its margins say K={self._rows_announced}",
                        line)
        made = Round(
            int(m[1]), int(m[2]), int(m[3]), int(m[4]), int(m[5]), self._time_us(m[6], line),
            int(m[7]), self._margins, line,
        )  # fmt: skip
        self._margins, self._rows_announced = (), None
        self._rounds += 1
        if self._rounds > _MOST_ROUNDS:
            self._break("too_many_rounds", f"more than {_MOST_ROUNDS} rounds", line)
            return
        self._open_rounds.append(made)

    def _change(self, **values: object) -> None:
        self._points[-1] = replace(self._points[-1], **values)  # type: ignore[arg-type]

    def _counts(self, m: re.Match[str], line: int) -> None:
        if int(m[4]) != self._points[-1].width:
            self._break("inconsistent", f"block={m[4]} closes a point of block "
                        f"{self._points[-1].width}", line)
        self._change(
            rounds=tuple(self._open_rounds), generated=int(m[1]), verifies=int(m[2]),
            tau=self._number(m[3], line), most=int(m[5]),
        )  # fmt: skip

    def _tokens(self, m: re.Match[str], _line: int) -> None:
        self._change(first_tokens=shape.ids(m[1]))

    def _gate(self, m: re.Match[str], line: int) -> None:
        passed = m[1] is not None
        compared = int(m[1]) if passed else int(m[2]) + 1
        self._change(lossless=Lossless(
            compared, None if passed else int(m[2]), int(m[3] or 0), int(m[4] or 0), line
        ))  # fmt: skip

    def _rate(self, m: re.Match[str], line: int) -> None:
        base_ms = self._number(m[3], line)
        self._number(m[5], line)
        if self._warm is not None and base_ms != self._warm[0]:
            self._break("inconsistent", "it is compared with another base time", line)
        self._change(
            ms_per_token=self._number(m[1], line), tok_s=self._number(m[2], line),
            base_tok_s=self._number(m[4], line), closed_line=line,
        )  # fmt: skip

    def _table_head(self, m: re.Match[str], line: int) -> None:
        self._table_base = self._number(m[1], line)

    def _row(self, m: re.Match[str], line: int) -> None:
        self._number(m[9], line)
        row = TableRow(
            int(m[1]), int(m[2]), Fraction(m[3]), self._number(m[4], line), int(m[5]),
            self._number(m[6], line), self._number(m[7], line), self._number(m[8], line), line,
        )  # fmt: skip
        _keep(self._table, row, _MOST_POINTS)

    def _ends(self, _m: re.Match[str], line: int) -> None:
        self._end = line


def _keep(kept: list[_Item], item: _Item, most: int = _KEPT) -> None:
    if len(kept) < most:
        kept.append(item)


_HANDLERS: dict[str, _Handler] = {
    "loading": Reader._loading, "loaded": Reader._has_loaded, "step": Reader._step,
    "first": Reader._first_token, "generated": Reader._base_tokens, "warm": Reader._base_rate,
    "verify_ids": Reader._verify_ids, "decode_ids": Reader._decode_ids, "match": Reader._matched,
    "external": Reader._external, "embedded": Reader._embedded, "plan": Reader._plan,
    "point": Reader._opens, "margins": Reader._margin, "round": Reader._round,
    "counts": Reader._counts, "tokens": Reader._tokens, "lossless": Reader._gate,
    "rate": Reader._rate, "table": Reader._table_head, "row": Reader._row, "end": Reader._ends,
}  # fmt: skip
