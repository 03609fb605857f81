"""The forest: every decided lever with its band, by ending, each block with its runs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from flywheel.report import glyphs, plots
from flywheel.report.document import BlockLine, Document, Row
from flywheel.report.markup import Links, section
from flywheel.report.words import ms, predicted
from flywheel.statistics.decide import two_digits

ENDINGS = ("promoted", "rejected", "inconclusive", "incorrect")
MEANING = {
    "rejected": "each with what it could be worth at most",
    "inconclusive": "each with what it could have seen",
}


def effects(document: Document, links: Links) -> str:
    """The table of decided levers; its plots share one scale of time saved."""
    banded = [(r.mean, r.low, r.high) for r in document.rows if r.mean is not None]
    scale = glyphs.axis([(mean or 0.0, low, high) for mean, low, high in banded])
    groups = [(ending, document.of(ending)) for ending in ENDINGS]
    groups.append(("canaries", tuple(r for r in document.rows if r.null)))
    low, high = (f"{v * 100:+.0f} %" for v in (scale.low, scale.high))
    axis = f'<span class="scale"><span>{low} slower</span><span>faster {high}</span></span>'
    heads = ("lever", axis, "worth", "predicted", "evidence")
    kinds = ("", ' class="plot"', ' class="said"', ' class="num"', "")
    top = "".join(f'<th scope="col" role="columnheader"{kind}>{head}</th>'
                  for head, kind in zip(heads, kinds, strict=True))
    body = "".join(_group(links, name, rows, scale) for name, rows in groups)
    table = (f'<table class="effects" role="table"><thead role="rowgroup"><tr role="row">{top}'
             f"</tr></thead>{body}</table>")
    return section("Effects", table)


def _group(links: Links, name: str, rows: Sequence[Row], scale: glyphs.Axis) -> str:
    meaning = f' <span class="note">{MEANING[name]}</span>' if name in MEANING and rows else ""
    head = (f'<tr class="group" role="row"><th colspan="5" scope="rowgroup" role="rowheader">'
            f"{name} {len(rows)}{meaning}</th></tr>")
    body = "".join(_row(links, row, scale) for row in rows)
    kind = "null" if name == "canaries" else name
    return f'<tbody class="{kind}" role="rowgroup">{head}{body}</tbody>'


def _row(links: Links, row: Row, scale: glyphs.Axis) -> str:
    said = f"{row.ending}: {row.said}" if row.null else row.said
    loud = ' class="loud"' if "REGRESSION" in said else ""
    names = " ".join(f'<a href="#F{n}">F{n}</a>' for n in row.findings) or f"D{row.decision}"
    link = f'<a href="#d{row.decision}-blocks"{loud}>{escape(said)}</a>'
    hoped = "" if row.null else predicted(row.predicted, row.metric)
    return (
        f'<tr id="d{row.decision}" role="row">'
        f'<th scope="row" role="rowheader">{escape(row.label)} '
        f'<span class="refs">{names}</span></th>'
        f'<td class="plot" role="cell">{plots.forest_cell(row, scale)}</td>'
        f'<td class="said" role="cell">{link if row.measured else escape(said)}</td>'
        f'<td class="num hoped" role="cell">{hoped}</td>'
        f'<td class="evidence" role="cell">{_blocks(links, row)}</td></tr>'
    )


def _blocks(links: Links, row: Row) -> str:
    if not row.measured:
        return ""
    items = "".join(f"<li>{_block(links, block)}</li>" for block in row.measured)
    return (
        f"<details><summary>D{row.decision}, {row.sample}</summary>"
        f'<ul class="blocks" id="d{row.decision}-blocks">{items}</ul></details>'
    )


def _block(links: Links, block: BlockLine) -> str:
    runs = ", ".join(links.run(run) for run in block.runs)
    if block.screened:
        return f"{escape(block.id)} screen: {escape('; '.join(block.screened))} · {runs}"
    if block.gain is None or block.within is None or block.level is None:
        return f"{escape(block.id)} void: {escape(block.void_code or 'open')} · {runs}"
    unit = f"tau {block.level:.2f}" if block.metric == "tau" else f"{ms(block.level)} ms/token"
    word = "saves" if block.gain >= 0 else "costs"
    return (
        f"{escape(block.id)} {word} {abs(block.gain) * 100:.2f} %, "
        f"within {two_digits(block.within)}, against {unit} · {runs}"
    )
