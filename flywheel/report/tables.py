"""The document on a terminal, first screen first. Survives 60 columns and pipes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from flywheel.report.detail import Category, Detail
from flywheel.report.document import Document, Row

NARROW = 84
# Under this width the table of categories goes without its spared columns.
SLIM = 48
SPARED = ("prompts", "plain")


def render(document: Document, console: Console | None = None) -> None:
    """Print the whole report. Without a console, to standard output at its own width."""
    out = console or Console(highlight=False, soft_wrap=False)
    narrow = out.width < NARROW
    _line(out, "", document.title, style="bold")
    style = "bold red" if document.canaries.value else "bold green"
    _line(out, "canaries", document.canaries.text, style=style)
    _line(out, "incumbent", document.incumbent.text)
    _line(out, "gain", document.gain.text)
    out.print()
    for ending in ("promoted", "rejected", "inconclusive", "incorrect"):
        _ending(out, document, ending, narrow)
    _voids(out, document)
    _line(out, "budget", document.budget)
    _line(out, "next", document.next)
    for note in document.notes:
        _line(out, "note", note)
    if document.findings:
        out.print()
        for finding in document.findings:
            _line(out, f"F{finding.number}", f"{finding.date}  {finding.sentence}")
    if document.detail is not None:
        out.print()
        _detail(out, document.detail)


def _line(out: Console, head: str, text: str, style: str = "") -> None:
    """A head word and its text, wrapped under itself."""
    table = Table.grid(padding=(0, 1))
    if head:
        table.add_column(width=12, no_wrap=True)
    table.add_column(overflow="fold")
    body = Text(text, style=style)
    table.add_row(*((Text(head, style="dim"), body) if head else (body,)))
    out.print(table)


def _ending(out: Console, document: Document, ending: str, narrow: bool) -> None:
    rows = document.of(ending)
    _line(out, ending, str(len(rows)))
    for row in rows:
        cells = _cells(row)
        if narrow:
            # A table would squeeze its columns to single letters; two plain lines stay legible.
            out.print(Padding(Text(f"{cells[0]}  {cells[1]}", overflow="fold"), (0, 0, 0, 2)))
            out.print(Padding(Text("  ".join(c for c in cells[2:] if c)), (0, 0, 0, 6)))
    if rows and not narrow:
        table = Table.grid(padding=(0, 2))
        for width in (5, 0, 0, 9, 0):
            table.add_column(min_width=width or None, overflow="fold")
        for row in rows:
            table.add_row(*(Text(c) for c in _cells(row)))
        out.print(Padding(table, (0, 0, 0, 2)))


def _cells(row: Row) -> tuple[str, str, str, str, str]:
    blocks = f"{row.blocks} block" + ("" if row.blocks == 1 else "s")
    miss = f": {_refs(row.findings[1:])}" if len(row.findings) > 1 else ""
    name = _refs(row.findings[:1]) or f"D{row.decision}"
    return name, row.label, row.said, blocks, f"predicted {-row.predicted * 100:.3g} %{miss}"


def _refs(numbers: Sequence[int]) -> str:
    return ", ".join(f"F{n}" for n in numbers)


def _voids(out: Console, document: Document) -> None:
    deferred = document.of("void")
    _line(out, "void", str(len(document.voids)))
    for void in document.voids:
        said = f"{void.label}: {void.code}, {void.detail} ({void.after})"
        out.print(Padding(Text(said, overflow="fold"), (0, 0, 0, 2)))
    for row in deferred:
        out.print(Padding(Text(f"{row.label}: {row.said}", overflow="fold"), (0, 0, 0, 2)))


def _detail(out: Console, detail: Detail) -> None:
    out.print(Text("the best configuration, from its own runs (pooled ratios)", style="bold"))
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    names = ("category", "prompts", "tau", "ms/token", "plain", "speedup")
    # What does not fit would be squeezed to single letters; the HTML page has it all.
    kept = [n for n, name in enumerate(names) if out.width >= SLIM or name not in SPARED]
    for n in kept:
        table.add_column(names[n], justify="left" if n == 0 else "right")
    for row in (*detail.categories, detail.total):
        cells = category_cells(row)
        table.add_row(*(cells[n] for n in kept))
    out.print(table)
    for head, text in detail_lines(detail):
        _line(out, head, text)


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
        costs = ", ".join(f"C({width}) {ms:.3g} ms" for width, ms in detail.step_cost_ms)
        yield "step cost", costs
    if detail.prefill_tok_s is not None:
        yield "prefill", f"{detail.prefill_tok_s:.4g} tok/s"
    if detail.ttft_ms is not None:
        yield "first token", f"{detail.ttft_ms:.3g} ms (median)"
    if detail.peak_bytes is not None:
        yield "memory", f"{detail.peak_bytes / 1e9:.2f} GB at its peak"
    yield "runs", ", ".join(f"{run} {lines}".strip() for run, lines in detail.runs)
