"""The document on a terminal, first screen first. Survives 40 columns and pipes."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from flywheel.display.plain import plain
from flywheel.report import glyphs
from flywheel.report.detail import Category, Detail
from flywheel.report.document import Document, Row
from flywheel.report.imported import NO_CAMPAIGN, ImportedLine, counted
from flywheel.report.words import ms, predicted, saved

HEAD = 12
NARROW = 60
# A forest of fewer cells says nothing that its figures do not.
LEAST_FOREST = 8
KEEP = "\N{NO-BREAK SPACE}"
STYLES = {"promoted": "green", "rejected": "", "inconclusive": "", "incorrect": "bold red"}


@dataclass(frozen=True, slots=True)
class Page:
    """How wide the page is, and with what it draws."""

    width: int
    pens: glyphs.Pens = glyphs.UNICODE

    @property
    def narrow(self) -> bool:
        """Too narrow for a column of head words."""
        return self.width < NARROW


@dataclass(frozen=True, slots=True)
class Line:
    """One printed line."""

    text: str = ""
    style: str = ""


def render(document: Document, out: Console) -> None:
    """Print the whole report at the console's own width."""
    show(lines(document, page_of(out)), out)


def page_of(out: Console) -> Page:
    """The page that a console is."""
    return Page(out.width, glyphs.ASCII if out.options.ascii_only else glyphs.UNICODE)


def show(printed: Iterator[Line], out: Console) -> None:
    """Print lines as they are."""
    for line in printed:
        out.print(Text(line.text, style=line.style), soft_wrap=True)


def lines(document: Document, page: Page) -> Iterator[Line]:
    """Every line of the report, none wider than the page."""
    yield from wrapped(page, "", document.title, style="bold")
    style = "bold red" if document.canaries.value else "bold green"
    yield from wrapped(page, "canaries", document.canaries.text, style=style)
    yield from wrapped(page, "incumbent", document.incumbent.text)
    yield from wrapped(page, "gain", document.gain.text)
    yield from wrapped(page, "cost", document.cost.text)
    for halt in document.halts:
        said = f"{halt.code}: {halt.reason} (since {halt.created_utc}; flywheel resume lifts it)"
        yield from wrapped(page, "HALTED", said, style="bold red")
    if document.faults:
        last = document.faults[-1]
        said = f"{len(document.faults)} while serving; the last, {last.at_utc}: {last.said}"
        yield from wrapped(page, "faults", said, style="red")
    yield Line()
    for ending in ("promoted", "rejected", "inconclusive", "incorrect"):
        yield from _ending(document, ending, page)
    yield from _voids(document, page)
    yield from wrapped(page, "budget", document.budget)
    yield from wrapped(page, "next", document.next)
    for note in document.notes:
        yield from wrapped(page, "note", note)
    if document.imported:
        said = f"{counted(document.imported)}; apart from ours, flywheel import list shows them"
        yield from wrapped(page, "imported", said)
    for section in (_queue, _forest, _trace, _findings):
        printed = list(section(document, page))
        if printed:
            yield Line()
            yield from printed
    if document.detail is not None:
        yield Line()
        yield from _detail(document.detail, page)


def imported_lines(found: Sequence[ImportedLine], page: Page) -> Iterator[Line]:
    """What a ledger without a campaign of its own has to tell."""
    yield from wrapped(page, "", NO_CAMPAIGN, style="bold")
    yield from wrapped(page, "imported", counted(found) or "nothing")
    for one in found:
        style = "" if one.outcome == "ok" else "red"
        yield from wrapped(page, "", f"{one.name}: {one.said}", style=style, indent=2)


def wrapped(
    page: Page, head: str, text: str, *, style: str = "", indent: int = 0, width: int = HEAD
) -> Iterator[Line]:
    """A head word and its text, wrapped under itself; on a narrow page under a small indent."""
    first = " " * indent + (f"{head:<{width}} " if head else "")
    if head and page.narrow:
        first = f"{' ' * indent}{head}  "
    rest = " " * (indent + 2) if page.narrow or not head else " " * len(first)
    for line in textwrap.wrap(plain(text), max(page.width, 16), initial_indent=first,
                              subsequent_indent=rest if head or indent else "") or [first.rstrip()]:
        yield Line(line.replace(KEEP, " "), style)


def _ending(document: Document, ending: str, page: Page) -> Iterator[Line]:
    rows = document.of(ending)
    head = f"{ending}  " if page.narrow else f"{ending:<{HEAD}} "
    yield Line(f"{head}{len(rows)}", STYLES[ending] if rows else "")
    cells = [_cells(row) for row in rows]
    widths = [max((len(c[i]) for c in cells), default=0) for i in range(5)]
    for one in cells:
        joined = "  ".join(c.ljust(w) for c, w in zip(one, widths, strict=True)).rstrip()
        if len(joined) + 2 <= page.width:
            yield Line(f"  {joined}")
            continue
        # A table would squeeze its columns to single letters; two plain lines stay legible.
        yield from wrapped(page, "", f"{one[0]}  {one[1]}", indent=2)
        # A figure stays whole: only between figures may a line end.
        whole = " · ".join(c.replace(" ", KEEP) if len(c) < 24 else c for c in one[2:] if c)
        yield from wrapped(page, "", whole, indent=6)


def _cells(row: Row) -> tuple[str, str, str, str, str]:
    miss = f": {_refs(row.findings[1:])}" if len(row.findings) > 1 else ""
    name = _refs(row.findings[:1]) or f"D{row.decision}"
    hoped = f"predicted {predicted(row.predicted, row.metric)}{miss}"
    return name, row.label, row.said, row.sample, hoped


def _refs(numbers: Sequence[int]) -> str:
    return ", ".join(f"F{n}" for n in numbers)


def _voids(document: Document, page: Page) -> Iterator[Line]:
    by_code: dict[str, int] = {}
    for void in document.voids:
        by_code[void.code] = by_code.get(void.code, 0) + 1
    reasons = ", ".join(f"{code} {n}" for code, n in sorted(by_code.items()))
    total = f"{len(document.voids)}   {reasons}".rstrip()
    yield from wrapped(page, "void", total)
    said = [
        f"{v.label}: {v.code}{f', {v.detail}' if v.detail else ''} ({v.after})"
        for v in document.voids
    ]
    for text in dict.fromkeys(said):
        times = f", {said.count(text)} times" if said.count(text) > 1 else ""
        yield from wrapped(page, "", text + times, indent=2)
    for row in document.of("void"):
        yield from wrapped(page, "", f"{row.label}: {row.said}", indent=2)


def _queue(document: Document, page: Page) -> Iterator[Line]:
    if not document.queue:
        return
    yield Line("queue, best first", "bold")
    for waiting in document.queue:
        yield from wrapped(page, "", f"{waiting.label}: {waiting.why}", indent=2)


def _forest(document: Document, page: Page) -> Iterator[Line]:
    """The band of every decided lever on one scale; canaries among them, in brackets."""
    rows = [r for r in document.rows if r.mean is not None]
    if not rows:
        return
    rows.sort(key=lambda r: -(r.mean or 0.0))
    scale = glyphs.axis([(r.mean or 0.0, r.low, r.high) for r in rows])
    names = [f"({r.label})" if r.null else r.label for r in rows]
    longest = min(max(len(n) for n in names), page.width * 2 // 5)
    room = page.width - longest - 12
    if room < LEAST_FOREST:
        return
    yield Line(f"{saved({r.metric for r in rows})} saved, mean and band", "bold")
    for name, row in zip(names, rows, strict=True):
        drawn = glyphs.bar(row.mean or 0.0, row.low, row.high, scale, room, page.pens)
        style = STYLES.get(row.ending, "") if not row.null else "dim"
        yield Line(f"{_cut(name, longest):<{longest}} {_gain(row.mean):>7}  {drawn}", style)
    low, high = (f"{v * 100:+.0f} %" for v in (scale.low, scale.high))
    if room >= 32:
        low, high = f"{low} slower", f"faster {high}"
    yield Line(f"{'':<{longest}} {'':>7}  {low}{high:>{max(1, room - len(low))}}", "dim")


def _gain(value: float | None) -> str:
    return "" if value is None else f"{value * 100:+.1f} %"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _trace(document: Document, page: Page) -> Iterator[Line]:
    trace = document.trace
    if len(trace.levels) < 2 or page.pens is glyphs.ASCII:
        return
    levels = [level.ms for level in trace.levels]
    within = [n.within * 100 for n in trace.noise]
    between = [n.between * 100 for n in trace.noise if n.between is not None]
    yield Line("over time, oldest first", "bold")
    for head, values, unit in (
        ("incumbent", levels, "ms/token"), ("within load", within, "%"), ("between", between, "%")
    ):  # fmt: skip
        if len(values) < 2:
            continue
        said = f"{ms(values[0])} to {ms(values[-1])} {unit}"
        room = page.width - HEAD - len(said) - 4
        yield Line(f"{head:<{HEAD}} {glyphs.spark(values, max(2, room))}  {said}")


def _findings(document: Document, page: Page) -> Iterator[Line]:
    for finding in document.findings:
        said = f"{finding.date}  {finding.sentence}"
        yield from wrapped(page, f"F{finding.number}", said, width=4)


def _detail(detail: Detail, page: Page) -> Iterator[Line]:
    title = "the best configuration, from its own runs (pooled ratios)"
    yield Line(_cut(title, page.width), "bold")
    heads = ("category", "prompts", "tau", "ms/token", "plain", "speedup")
    table = [heads, *(category_cells(row) for row in (*detail.categories, detail.total))]
    if page.narrow:
        table = [(r[0], r[2], r[3], r[5]) for r in table]
    widths = [max(len(r[i]) for r in table) for i in range(len(table[0]))]
    for cells in table:
        texts = [c.ljust(w) if i == 0 else c.rjust(w)
                 for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
        yield Line("  ".join(texts).rstrip())
    for head, text in detail_lines(detail):
        yield from wrapped(page, head, text)


def category_cells(row: Category) -> tuple[str, ...]:
    """One category as printed: name, prompts, tau, ms/token, plain ms/token, speedup."""
    return (
        row.name,
        str(row.prompts),
        "-" if row.tau is None else f"{row.tau:.2f}",
        f"{row.ms_per_token:.3f}",
        "-" if row.plain_ms_per_token is None else f"{row.plain_ms_per_token:.3f}",
        "-" if row.speedup is None else f"{row.speedup:.2f} x",
    )


def detail_lines(detail: Detail) -> Iterator[tuple[str, str]]:
    """The figures below the table, as (head, text)."""
    if detail.accepted:
        shares = ", ".join(f"{place}: {share * 100:.0f} %" for place, share in detail.accepted)
        yield "accepted", f"{shares} (by draft position)"
    if detail.step_cost_ms:
        costs = ", ".join(f"C({width}) {ms(value)} ms" for width, value in detail.step_cost_ms)
        yield "step cost", costs
    if detail.prefill_tok_s is not None:
        yield "prefill", f"{detail.prefill_tok_s:.4g} tok/s"
    if detail.ttft_ms is not None:
        yield "first token", f"{ms(detail.ttft_ms)} ms (median)"
    if detail.peak_bytes is not None:
        yield "memory", f"{detail.peak_bytes / 1e9:.2f} GB at its peak"
    yield "runs", ", ".join(f"{run} {lines}".strip() for run, lines in detail.runs)


