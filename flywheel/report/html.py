"""The document as one HTML file: inline SVG, light and dark, printable, nothing fetched."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape

from flywheel.report import plots
from flywheel.report.detail import Detail
from flywheel.report.document import Document, Figure, Row
from flywheel.report.tables import category_cells, detail_lines

STYLE = """
:root{color-scheme:light dark;--ink:#1b1d20;--dim:#5d646e;--paper:#fdfdfb;--line:#d6d8d4;
--good:#1a7f4b;--bad:#b3312c;--mid:#8a6d1a;--quiet:#7a828c;--bar:#3a6ea5}
@media (prefers-color-scheme:dark){:root{--ink:#e6e7e4;--dim:#a0a6ae;--paper:#15171a;--line:#33373d;
--good:#58c08a;--bad:#ef7d75;--mid:#d8b65a;--quiet:#8b929b;--bar:#7fb0e6}}
*{box-sizing:border-box}body{margin:0 auto;max-width:62rem;padding:1.5rem 1rem 4rem;
font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper)}
h1{font-size:1.15rem}h2{font-size:1.05rem;margin:2rem 0 .4rem;border-bottom:1px solid var(--line)}
dl{display:grid;grid-template-columns:7rem 1fr;gap:.2rem .8rem;margin:0}
dt{color:var(--dim)}dd{margin:0}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.15rem .6rem .15rem 0;vertical-align:top;overflow-wrap:anywhere}
th{color:var(--dim);font-weight:500}tr:target,li:target{outline:2px solid var(--bar)}
.wide{overflow-x:auto}a{color:inherit;text-decoration-color:var(--quiet)}code,pre{font-size:.85em}
pre{white-space:pre-wrap}.alarm{color:var(--bad);font-weight:700}.well{color:var(--good);font-weight:700}
.refs{color:var(--quiet);font-size:.85em}svg{width:100%;height:auto;font:12px system-ui,sans-serif}
svg text{fill:var(--ink)}.axis{stroke:var(--quiet)}.band{stroke-width:3}.bar{fill:var(--bar)}
.stair{fill:none;stroke:var(--good);stroke-width:2}
.band.promoted{stroke:var(--good)}.dot.promoted{fill:var(--good)}
.band.rejected,.band.incorrect{stroke:var(--bad)}.dot.rejected,.dot.incorrect{fill:var(--bad)}
.band.inconclusive{stroke:var(--mid)}.dot.inconclusive{fill:var(--mid)}
.band.void,.band.null{stroke:var(--quiet)}.dot.void,.dot.null{fill:var(--quiet)}
@media print{body{max-width:none;padding:0}h2,svg,tr{break-inside:avoid}}
"""


def render(document: Document) -> str:
    """The whole page; every figure links to its runs, which are listed at the end."""
    parts = [
        f"<h1>{escape(document.title)}</h1>",
        _first(document),
        _section("Bands", plots.forest(document.rows)),
        *(_ending(document, ending) for ending in ("promoted", "rejected", "inconclusive",
                                                   "incorrect")),
        _voids(document),
        _canaries(document),
        _findings(document),
        _section("Incumbent over time", plots.timeline(document.timeline)),
        "" if document.detail is None else _detail(document.detail),
        _section("Best configuration", f"<pre>{escape(_json(document.config))}</pre>"),
        _runs(document),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(document.title)}</title><style>{STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _json(value: object) -> str:
    return json.dumps(value, indent=2, sort_keys=True)


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def _first(document: Document) -> str:
    alarm = "alarm" if document.canaries.value else "well"
    rows = [
        ("canaries", f'<span class="{alarm}">{_figure(document.canaries)}</span>'),
        ("incumbent", _figure(document.incumbent)),
        ("gain", _figure(document.gain)),
        ("budget", escape(document.budget)),
        ("next", escape(document.next)),
        *(("note", escape(note)) for note in document.notes),
    ]
    return "<dl>" + "".join(f"<dt>{head}</dt><dd>{body}</dd>" for head, body in rows) + "</dl>"


def _figure(figure: Figure) -> str:
    return f"{escape(figure.text)} {_refs(figure.runs)}".rstrip()


def _refs(runs: Sequence[str]) -> str:
    if not runs:
        return ""
    links = " ".join(f'<a href="#{escape(r)}">{escape(r)}</a>' for r in runs[:8])
    more = f" and {len(runs) - 8} more" if len(runs) > 8 else ""
    return f'<span class="refs">{links}{more}</span>'


def _table(head: Iterable[str], rows: Iterable[tuple[str, Iterable[str]]]) -> str:
    """A table of cells that are HTML already; each row with its id ('' for none)."""
    top = "".join(f"<th>{escape(h)}</th>" for h in head)
    body = "".join(
        f"<tr{f' id={chr(34)}{escape(name)}{chr(34)}' if name else ''}>"
        + "".join(f"<td>{c}</td>" for c in cells) + "</tr>"
        for name, cells in rows
    )
    inside = f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="wide"><table>{inside}</table></div>'


def _ending(document: Document, ending: str) -> str:
    rows = document.of(ending)
    if not rows:
        return _section(f"{ending} 0".capitalize(), "<p>none</p>")
    head = ("", "lever", "gain", "blocks", "predicted", "evidence")
    body = _table(head, ((f"d{r.decision}", _cells(r)) for r in rows))
    return _section(f"{ending} {len(rows)}".capitalize(), body)


def _cells(row: Row) -> tuple[str, ...]:
    names = " ".join(f'<a href="#F{n}">F{n}</a>' for n in row.findings) or f"D{row.decision}"
    loud = ' class="alarm"' if "REGRESSION" in row.said else ""
    return (
        names, escape(row.label), f"<span{loud}>{escape(row.said)}</span>", str(row.blocks),
        f"{-row.predicted * 100:.3g} %", _refs(row.runs),
    )


def _canaries(document: Document) -> str:
    rows = [
        (f"d{r.decision}", (escape(r.label), escape(f"{r.ending}: {r.said}"), str(r.blocks),
                            _refs(r.runs)))
        for r in document.rows
        if r.null
    ]
    head = ("canary", "ending", "blocks", "evidence")
    return _section(f"Canaries {len(rows)}", _table(head, rows) if rows else "")


def _voids(document: Document) -> str:
    rows = [
        ("", (escape(v.label), escape(v.code), escape(v.detail), escape(v.after), _refs(v.runs)))
        for v in document.voids
    ]
    rows += [
        (
            f"d{r.decision}",
            (escape(r.label), escape(r.code), escape(r.said), "deferred", _refs(r.runs)),
        )
        for r in document.of("void")
    ]
    head = ("lever", "reason", "detail", "then", "evidence")
    body = _table(head, rows) if rows else "<p>none</p>"
    return _section(f"Void {len(document.voids)}", body)


def _findings(document: Document) -> str:
    items = "".join(
        f'<li id="F{f.number}"><b>F{f.number}</b> {f.date} {escape(f.sentence)} '
        f"{_refs(f.runs)}</li>"
        for f in document.findings
    )
    return _section("Findings", f"<ul>{items}</ul>" if items else "")


def _detail(detail: Detail) -> str:
    head = ("category", "prompts", "tau (pooled)", "ms/token", "plain ms/token", "speedup")
    shown = (*detail.categories, detail.total)
    rows = (("", [escape(c) for c in category_cells(r)]) for r in shown)
    lines = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>"
        for name, text in detail_lines(detail) if name != "runs"
    )
    sources = " · ".join(
        f'<a href="#{escape(run)}">{escape(run)}</a> {escape(where)}' for run, where in detail.runs
    )
    accepted = plots.bars(
        "accepted by draft position",
        [(str(place), share, f"{share * 100:.0f} %") for place, share in detail.accepted],
        top=1.0,
    )
    cost = plots.bars(
        "cost of one verify step by width",
        [(f"C({width})", ms, f"{ms:.3g} ms") for width, ms in detail.step_cost_ms],
    )
    return (
        _section("Best configuration in detail", _table(head, rows) + f"<dl>{lines}</dl>"
                 + f'<p class="refs">{sources}</p>')
        + _section("Accepted by draft position", accepted)
        + _section("Step cost", cost)
    )


def _runs(document: Document) -> str:
    head = ("run", "for", "outcome", "wall", "log", "sha256", "to repeat it")
    rows = (
        (
            r.id,
            (
                escape(r.id), f"{escape(r.purpose)} {escape(r.variant)} {escape(r.block)}",
                escape(f"{r.outcome} {r.code}".strip()), f"{r.wall_s:.0f} s",
                f"<code>{escape(r.log)}</code>", f"<code>{escape(r.sha256[:12])}</code>",
                f"<code>{escape(r.repeat)}</code>",
            ),
        )
        for r in document.runs
    )
    return _section("Runs", _table(head, rows)) if document.runs else ""
