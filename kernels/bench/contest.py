"""Times of one operation by different packages, and what they are beside ours. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kernels.bench.shape import HIDDEN, INNER, LINEARS, Linear

OURS = "ours"
_MOST_US = 1e12  # more than any command may take
_LONGEST, _SHORT = 10_000, 200  # characters that are looked at, and that are kept
LAYER = "layer"
CHAIN = "experts chain"
# What others launch apart and our experts' grids hold already.
SHARED = (Linear("shared w13", 2 * INNER, HIDDEN), Linear("shared w2", HIDDEN, INNER))
# Operations that are compared, in the order of the table.
OPERATIONS = (
    *(linear.name for linear in (*LINEARS, *SHARED)),
    "experts gate_up",
    "experts down",
    CHAIN,
    LAYER,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One package's time for one operation, median microseconds."""

    operation: str
    rows: int
    who: str
    us: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Missing:
    """What could not be run, and why."""

    who: str
    what: str
    why: str


def read(who: str, raw: Any) -> Entry | Missing | None:
    """One JSON object of a peer; None for one that is about another operation.

    A time has `op`, `M` or `rows`, and `us`; a failure has `error` instead. `peer` and `note` are
    optional. A time with `ms_per_layer` is one of a whole layer, whatever its `op` is called.
    """
    if not isinstance(raw, dict) or not isinstance(raw.get("op"), str):
        return None
    name, op = short(raw.get("peer") or who), short(raw["op"])
    if name == OURS:  # nobody else's times count as ours
        name = who
    rows = raw.get("M", raw.get("rows"))
    if raw.get("error") is not None:
        return Missing(name, short(f"{op}, {rows} rows"), short(raw["error"]))
    if "ms_per_layer" in raw:
        operation, us = LAYER, _positive(raw["ms_per_layer"]) * 1e3
    else:
        operation, us = _operation(op), _positive(raw.get("us"))
    if not operation or type(rows) is not int or rows < 1 or math.isnan(us):
        return None
    note = short(raw.get("note", ""))
    return Entry(operation, rows, name, us, f"{op}; {note}" if operation == LAYER else note)


def _operation(op: str) -> str:
    """Our name of an operation that a peer may follow by its shape or give without its family."""
    for name in OPERATIONS:
        if op == name or op.startswith(name + " ") or f"experts {op}" == name:
            return name
    return ""


def _positive(value: Any) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and 0 < value < _MOST_US else math.nan


def short(value: object) -> str:
    """One line of what a terminal can show, whatever a peer said."""
    text = "".join(c if c.isprintable() else " " for c in str(value)[:_LONGEST])
    return " ".join(text.split())[:_SHORT]


@dataclass(frozen=True, slots=True)
class Line:
    """One operation at one number of rows: ours, and every peer fastest first."""

    operation: str
    rows: int
    ours: float | None  # us
    peers: tuple[Entry, ...]

    def ratio(self, entry: Entry) -> float | None:
        """How many times our time a peer takes; above one is slower than ours."""
        return None if self.ours is None else entry.us / self.ours

    def plain(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "op": self.operation,
            "rows": self.rows,
            "ours_us": self.ours,
            "peers": [
                {"who": e.who, "us": e.us, "ratio": self.ratio(e), "note": e.note}
                for e in self.peers
            ],
        }


def lines(entries: Iterable[Entry]) -> list[Line]:
    """Entries by operation and rows.

    Of times with one name and note the best counts; of whole layers, whose notes are settings, the
    best of a name.
    """
    grouped: dict[tuple[int, int], dict[tuple[str, str], Entry]] = {}
    for entry in entries:
        best = grouped.setdefault((OPERATIONS.index(entry.operation), entry.rows), {})
        settings = "" if entry.operation == LAYER or entry.who == OURS else entry.note
        known = best.get((entry.who, settings))
        if known is None or entry.us < known.us:
            best[entry.who, settings] = entry
    found = []
    for (index, rows), best in sorted(grouped.items()):
        ours = best.pop((OURS, ""), None)
        peers = tuple(sorted(best.values(), key=lambda e: e.us))
        found.append(Line(OPERATIONS[index], rows, None if ours is None else ours.us, peers))
    return found


def products(found: Sequence[Line], rows: int) -> tuple[float | None, float | None]:
    """Microseconds of all products of a layer: ours, and the fastest peer of each in a row.

    Ours hold the shared expert in the experts' launches. None where one was not timed.
    """
    mine = {x.operation: x for x in found if x.rows == rows}
    own = [linear.name for linear in LINEARS] + [CHAIN]
    others = [*own, *(linear.name for linear in SHARED)]
    ours = [mine[name].ours if name in mine else None for name in own]
    best = [mine[name].peers[0].us if name in mine and mine[name].peers else None
            for name in others]  # fmt: skip
    return _sum(ours), _sum(best)


def _sum(times: Sequence[float | None]) -> float | None:
    known = [us for us in times if us is not None]
    return sum(known) if len(known) == len(times) else None


def table(found: Sequence[Line], missing: Sequence[Missing]) -> str:
    """One table with ratios, then what could not be run."""
    head = f"{'operation':<18}{'rows':>5}{'ours us':>10}{'us':>10}{'x ours':>8}  peer"
    out = [head]
    for line in found:
        ours = "-" if line.ours is None else f"{line.ours:.2f}"
        start = f"{line.operation:<18}{line.rows:>5}{ours:>10}"
        if not line.peers:
            out.append(f"{start}{'-':>10}{'-':>8}  none")
        for entry in line.peers:
            ratio = line.ratio(entry)
            times = "-" if ratio is None else f"{ratio:.2f}"
            note = f"  ({entry.note})" if entry.note else ""
            out.append(f"{start}{entry.us:>10.2f}{times:>8}  {entry.who}{note}")
            start = " " * len(start)
    for rows in sorted({line.rows for line in found}):
        own, best = products(found, rows)
        if own is not None and best is not None:
            out.append(
                f"all products of a layer, {rows} rows: ours {own:.1f} us, the fastest peer of "
                f"each one after another {best:.1f} us, {best / own:.2f} x ours"
            )
    out += [f"not run: {gap.who}, {gap.what}: {gap.why}" for gap in missing]
    return "\n".join(out)
