"""The document as one HTML file: inline SVG, light and dark, printable, nothing fetched."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from html import escape

from flywheel.lever import canonical
from flywheel.report import html_effects, html_runs, plots
from flywheel.report.detail import Detail
from flywheel.report.document import Document, Figure
from flywheel.report.frame import frame
from flywheel.report.imported import NO_CAMPAIGN, ImportedLine, counted
from flywheel.report.markup import Links, section, table, words
from flywheel.report.tables import category_cells, detail_lines
from flywheel.width.page import WidthPage, by_score, by_width, lines

_BIG = re.compile(r"^(-?[\d.]+) (ms/token|%|h \d+ min|min|s)(?= )")


def render(document: Document) -> str:
    """The whole page; every figure links to its runs, which are listed at the end."""
    links = Links.of(document)
    effects = html_effects.effects(document, links)
    body = "".join((
        _head(document, links), _figures(document, links), effects, _voids(document, links),
        _time(document, links), _next(document), _findings(document, links), _best(document),
        "" if document.detail is None else _detail(document.detail, links),
        "" if document.width is None else _width(document.width), _imported(document.imported),
        html_runs.runs(document),
    ))  # fmt: skip
    return frame(document.title, body)


def render_imported(imported: Sequence[ImportedLine]) -> str:
    """The page of a ledger that holds only what was imported: there is no night to tell of."""
    head = (
        f"<header><h1>{escape(NO_CAMPAIGN.capitalize())}</h1>"
        '<p class="meta">what another project measured, under rulers of its own; '
        "<code>flywheel run</code> begins ours</p></header>"
    )
    return frame(NO_CAMPAIGN, head + _imported(imported))


def _head(document: Document, links: Links) -> str:
    name, _, rest = document.title.partition(" · ")
    alarm = " alarm" if document.canaries.value else ""
    first, _, others = document.canaries.text.partition(" · ")
    halts = "".join(
        f'<p class="halt" role="alert"><b>Halted: {escape(h.code)}</b> {escape(h.reason)} '
        f"{links.run(h.run) if h.run else ''} (since {escape(h.created_utc)}; "
        "<code>flywheel resume</code> lifts it)</p>"
        for h in document.halts
    )
    if document.faults:
        last = document.faults[-1]
        halts += (
            f'<p class="note"><b>Faults while serving: {len(document.faults)}</b>, the last '
            f"{escape(last.at_utc)}: {escape(last.said)}</p>"
        )
    return (
        f'<header><h1>{escape(name.capitalize())}</h1><p class="meta">{escape(rest)}</p>'
        f'<div class="canary{alarm}"><b>canaries {escape(first)}</b> · {escape(others)} '
        f"{links.runs(document.canaries.runs)}</div>{halts}</header>"
    )


def _figures(document: Document, links: Links) -> str:
    cost = Figure(document.cost.text)
    cells = (("incumbent", document.incumbent), ("gain", document.gain), ("cost", cost))
    parts = [f"<div><h2>{name}</h2>{_figure(figure, links)}</div>" for name, figure in cells]
    return f'<div class="figures">{"".join(parts)}</div>'


def _figure(figure: Figure, links: Links) -> str:
    match = _BIG.match(figure.text)
    if match is None:
        body = f'<p class="rest">{escape(figure.text)}</p>'
    else:
        rest = figure.text[match.end():].strip()
        body = (f'<span class="big">{match[1]} <small>{match[2]}</small></span>'
                f' <span class="rest">{escape(rest)}</span>')
    return body + links.runs(figure.runs)


def _voids(document: Document, links: Links) -> str:
    rows = [
        (escape(v.label), escape(v.code), escape(v.detail), escape(v.after),
         ", ".join(links.run(r) for r in v.runs))
        for v in document.voids
    ]
    rows += [
        (f'<span id="d{r.decision}">{escape(r.label)}</span>', escape(r.code), escape(r.said),
         "deferred", links.runs(r.runs))
        for r in document.of("void")
    ]
    if not rows:
        return section("Void", '<p class="note">none</p>')
    reasons = Counter(v.code for v in document.voids)
    summary = ", ".join(f"{code} {n}" for code, n in sorted(reasons.items()))
    body = table(("lever", "reason", "detail", "then", "evidence"), rows, kind="stack")
    return section(f"Void {len(document.voids)}", f'<p class="note">{escape(summary)}</p>{body}')


def _time(document: Document, links: Links) -> str:
    trace = document.trace
    level, noise = plots.incumbent(trace, links.href), plots.noise(trace, links.href)
    if not level:
        return ""
    ring = '<svg viewBox="0 0 14 7"><circle class="within" cx="7" cy="3.5" r="2.8"/></svg>'
    line = '<svg viewBox="0 0 14 7"><line class="between" x1="0" y1="3.5" x2="14" y2="3.5"/></svg>'
    captions = (
        "<b>Incumbent, ms/token</b>A dot a block; the line is the mean, the area where the next "
        "load should fall; a dashed line a promotion.",
        f'<b>Noise, per cent of the time per token</b><span class="key">{ring} within a load</span>'
        f', <span class="key">{line} between loads, pooled so far</span>',
    )
    figures = "".join(
        f"<figure><figcaption>{caption}</figcaption>{plot}</figure>"
        for caption, plot in zip(captions, (level, noise), strict=True) if plot
    )
    return section("Over time", f'<div class="plots">{figures}</div>')


def _next(document: Document) -> str:
    pairs = [("next", document.next), ("budget", document.budget)]
    pairs += [("note", note) for note in document.notes]
    rows = [(escape(q.label), escape(q.why)) for q in document.queue]
    queue = table(("waiting, best first", "why"), rows, kind="stack") if rows else ""
    return section("Next", words(pairs) + queue)


def _findings(document: Document, links: Links) -> str:
    items = "".join(
        f'<li id="F{f.number}"><b>F{f.number}</b> <span class="note">{escape(f.date)}</span> '
        f"{escape(f.sentence)} {links.runs(f.runs)}</li>"
        for f in document.findings
    )
    return section("Findings", f'<ul class="list">{items}</ul>' if items else "")


def _best(document: Document) -> str:
    names = sorted({*document.config, *document.first_config})

    def cell(value: object) -> str:
        shown = value if isinstance(value, str) else canonical(value)
        return "the engine's default" if value is None else f"<code>{escape(shown)}</code>"

    rows = [
        (f"<code>{escape(name)}</code>", cell(document.first_config.get(name)),
         cell(document.config.get(name)))
        for name in names
    ]
    body = table(("field", "first", "best"), rows) if rows else (
        '<p class="note">the engine\'s defaults, as at first</p>'
    )
    return section("Best configuration", body)


def _width(page: WidthPage) -> str:
    """The width analysis, less the plots that the detail has shown already."""
    drawn = "".join(
        f"<figure><figcaption><b>{escape(title.capitalize())}</b></figcaption>{plot}</figure>"
        for title, plot in (by_width(page), by_score(page)) if plot
    )
    body = f'<div class="plots">{drawn}</div>{words(lines(page))}'
    return section(f"Widths: {page.label}", body)


def _imported(imported: Sequence[ImportedLine]) -> str:
    rows = [
        (f"<code>{escape(one.sha256[:8])}</code>", escape(one.name), escape(one.ruler or one.kind),
         escape(one.said))
        for one in imported
    ]
    if not rows:
        return ""
    body = table(("sha256", "file", "ruler", "says"), rows, kind="stack")
    return section(f"Imported {counted(imported)}", body)


def _detail(detail: Detail, links: Links) -> str:
    head = ("category", "prompts", "tau (pooled)", "ms/token", "plain ms/token", "speedup")
    shown = (*detail.categories, detail.total)
    rows = [[escape(c) for c in category_cells(r)] for r in shown]
    lines = [(name, text) for name, text in detail_lines(detail) if name != "runs"]
    sources = links.runs([run for run, _ in detail.runs])
    accepted = plots.bars(
        "Accepted by draft position",
        [(str(place), share, f"{share * 100:.0f} %") for place, share in detail.accepted],
        top=1.0,
    )
    cost = plots.bars(
        "Cost of one verify step by width, ms",
        [(str(width), ms, f"{ms:.3g}") for width, ms in detail.step_cost_ms],
    )
    drawn = "".join(
        f"<figure><figcaption><b>{name}</b></figcaption>{plot}</figure>"
        for name, plot in (("Accepted by draft position", accepted),
                           ("Cost of one verify step by width, ms", cost)) if plot
    )
    body = table(head, rows, numbers=5) + words(lines) + sources
    return section("In detail, from its own runs", f'{body}<div class="plots">{drawn}</div>')
