"""The study as a table in Markdown, and its place in the page on statistics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flywheel.cli import paper
from flywheel.errors import UsageError
from flywheel.simulate import plot
from flywheel.simulate.outcome import Summary

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
PAGE, POWER, CLAIMS = "statistics.md", "simulate-power.svg", "simulate-claims.svg"
HEAD = (
    "rule", "box", "loads a lever", "false a campaign (at most)",
    "false when all are null (at most)", "FDR", "power over 1 %", "true %", "claimed %",
)  # fmt: skip


def table(found: Sequence[Summary]) -> str:
    """Two tables: each rule on each box, and the power by true gain.

    "At most" is the upper end of the exact 95 % interval.
    """
    null = {(s.rule, s.box): s for s in found if s.truth == "null"}
    mixed = {(s.rule, s.box): s for s in found if s.truth == "mixed"}
    rows = [_row(mixed.get(key), null.get(key), *key) for key in dict.fromkeys([*mixed, *null])]
    gains = sorted({s.truth for s in found} - {"mixed", "null"}, key=float)
    powers: dict[str, dict[str, Summary]] = {}
    for s in found:
        if s.truth in gains:
            powers.setdefault(s.rule, {})[s.truth] = s
    second = [
        [rule, *(_share(by[g].power) if g in by else "" for g in gains)]
        for rule, by in powers.items()
    ]
    head = ["power on the base box at a true gain of", *(f"{float(g) * 100:g} %" for g in gains)]
    return f"{_markdown(HEAD, rows)}\n\n{_markdown(head, second)}"


def _row(mixed: Summary | None, null: Summary | None, rule: str, box: str) -> list[str]:
    def false(s: Summary | None) -> str:
        return "" if s is None else f"{s.false:.2f} ({s.false_high:.2f})"

    loads = (mixed or null).loads_per_lever  # type: ignore[union-attr]
    return [
        rule, box, f"{loads:.1f}", false(mixed), false(null),
        "" if mixed is None else f"{mixed.fdr:.2f}",
        "" if mixed is None else _share(mixed.power),
        "" if mixed is None else f"{mixed.true_gain * 100:.0f}",
        "" if mixed is None else f"{mixed.claimed_gain * 100:.0f}",
    ]  # fmt: skip


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    left = 2 if head is HEAD else 1
    rule = ["---"] * left + ["--:"] * (len(head) - left)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))


def put(page: str, found: Sequence[Summary]) -> str:
    """The page with the table between its marks; UsageError when it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UsageError(f"the page has no place for the table: {BEGIN} and {END}.")
    return f"{before}{BEGIN}\n{table(found)}\n{END}{after}"


def require(folder: Path) -> None:
    """UsageError unless pictures and table can be written there; makes the folder."""
    for name in (POWER, CLAIMS):
        paper.writable(folder / name)
    if (folder / PAGE).is_file():
        paper.writable(folder / PAGE)
        put(paper.text(folder / PAGE), ())


def write(folder: Path, found: Sequence[Summary]) -> None:
    """The pictures, and the table where the folder has the page for it; UsageError as `require`."""
    require(folder)
    paper.write(folder / POWER, plot.power(found))
    paper.write(folder / CLAIMS, plot.claims(found))
    page = folder / PAGE
    if page.is_file():
        paper.write(page, put(paper.text(page), found))
