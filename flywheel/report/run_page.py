"""One run: what was asked, how it ended, what its guard saw, its numbers and their lines. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flywheel.box.clock import count
from flywheel.ledger.rows import BlockRow, RunRow, VariantRow
from flywheel.report.compose import run_line
from flywheel.report.document import RunLine
from flywheel.report.evidence import Evidence, evidence
from flywheel.report.tables import Line, Page, wrapped
from flywheel.report.words import stamp
from flywheel.run.measurement import Measurement

MOST_LINES = 60
# How a metric is printed: what to divide its unit by, and into what.
SCALES = {"ns/token": (1e6, "ms/token"), "ns": (1e6, "ms"), "byte": (1e9, "GB")}


@dataclass(frozen=True, slots=True)
class Sum:
    """One metric of one arm, pooled (sum over sum) over its counted measurements."""

    arm: str
    metric: str
    value: float
    unit: str
    counted: int
    left_out: int
    first_line: int
    last_line: int


@dataclass(frozen=True, slots=True)
class RunPage:
    """Everything about one run; `guard` and `left` are what the supervisor wrote at its end."""

    run: RunLine
    slot: int
    pattern: str
    exit_status: int | None
    ended_utc: str
    guard: Mapping[str, Any] | None
    left: Mapping[str, Any]
    sums: tuple[Sum, ...]
    evidence: Evidence

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def run_page(
    found: tuple[VariantRow, BlockRow, RunRow],
    manifest: Mapping[str, Any],
    text: str | None,
    measured: Sequence[Measurement],
) -> RunPage:
    """The page of one run from its manifest, its stored log (None without) and measurements."""
    variant, block, run = found
    left = dict(run.evidence.get("exit") or {})
    guard = left.pop("guard", None) or run.evidence.get("guard")
    return RunPage(
        run=run_line(variant, block, run),
        slot=run.slot,
        pattern="hot" if block.hot else block.pattern,
        exit_status=left.get("status"),
        ended_utc=run.ended_utc,
        guard=guard if isinstance(guard, Mapping) else None,
        left=left,
        sums=sums(measured),
        evidence=evidence(manifest, text, ok=run.outcome == "ok", most=MOST_LINES),
    )


def sums(measured: Sequence[Measurement]) -> tuple[Sum, ...]:
    """Each arm's metrics, pooled; acceptance and step costs by position or width."""
    groups: dict[tuple[str, str], list[Measurement]] = defaultdict(list)
    for one in measured:
        indexed = one.metric in ("accepted", "step_cost")
        groups[one.arm, f"{one.metric} {one.repeat}" if indexed else one.metric].append(one)
    return tuple(_sum(arm, metric, rows) for (arm, metric), rows in sorted(groups.items()))


def _sum(arm: str, metric: str, rows: Sequence[Measurement]) -> Sum:
    counted = [m for m in rows if m.counted] or list(rows)
    divisor, unit = SCALES.get(rows[0].unit, (1.0, rows[0].unit))
    value = sum(m.numerator for m in counted) / sum(m.denominator for m in counted) / divisor
    places = [m.line for m in rows if m.line] or [0]
    left_out = sum(not m.counted for m in rows)
    return Sum(
        arm, metric, value, unit, len(rows) - left_out, left_out, min(places), max(places)
    )


def lines(page: RunPage, paper: Page) -> Iterator[Line]:
    """The page on a terminal."""
    run = page.run
    yield from wrapped(paper, "", f"{run.id}: {run.outcome} {run.code}".rstrip(), style="bold")
    ran = f"{stamp(run.started_utc)} UTC, {run.wall_s:.1f} s"
    status = "" if page.exit_status is None else f", exit status {page.exit_status}"
    for head, text in (
        ("for", f"{run.label} ({run.purpose} {run.variant}, block {run.block}, {page.pattern}, "
                f"load {page.slot + 1})"),
        ("ran", ran + status), ("detail", run.detail),
        ("guard", _told(page.guard) if page.guard else "none recorded"),
        ("exit", _told(page.left)),
        ("log", f"{count(page.evidence.total, 'line')}, sha256 {run.sha256[:16]}"
                if run.sha256 else "none stored"),
        ("to repeat", run.repeat),
    ):  # fmt: skip
        if text:
            yield from wrapped(paper, head, text)
    yield Line()
    for word, text in page.evidence.manifest:
        yield from wrapped(paper, word, text)
    if page.sums:
        yield Line()
        yield from _sum_lines(page.sums, paper)
    if page.evidence.lines:
        yield Line()
        for one in page.evidence.lines:
            style = "bold red" if one.failed else ""
            yield from wrapped(paper, f"L{one.number}", one.text, style=style, width=5)


def _told(values: Mapping[str, Any]) -> str:
    plain = (f"{k} {v}" for k, v in values.items() if not isinstance(v, Mapping | list)
             and v not in (None, "", False) and not k.endswith(("_utc", "sha256", "run_id")))
    return ", ".join(plain)


def _sum_lines(sums: Sequence[Sum], paper: Page) -> Iterator[Line]:
    for one in sums:
        where = f"L{one.first_line}" if one.first_line else ""
        if one.last_line != one.first_line:
            where += f"-{one.last_line}"
        left_out = f", {one.left_out} left out" if one.left_out else ""
        text = f"{one.value:.4g} {one.unit}  {one.counted} counted{left_out}  {where}".rstrip()
        yield from wrapped(paper, f"{one.arm or '-'} {one.metric}", text, width=16)
