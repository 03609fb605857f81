"""Pieces of HTML: escaped text, links to runs and log lines, tables. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from flywheel.box.clock import count
from flywheel.report.document import Document
from flywheel.report.evidence import Evidence

SHOWN_RUNS = 60


def section(title: str, body: str) -> str:
    """A titled part of the page; nothing without a body."""
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str = "", numbers: int = 0
) -> str:
    """A table of cells that are HTML already; the last `numbers` columns are figures."""
    first = len(head) - numbers

    def named(i: int) -> str:
        return ' class="num"' if i >= first else ""

    top = "".join(f'<th scope="col"{named(i)}>{escape(h)}</th>' for i, h in enumerate(head))
    body = "".join(
        "<tr>" + "".join(f"<td{named(i)}>{c}</td>" for i, c in enumerate(cells)) + "</tr>"
        for cells in rows
    )
    named_kind = f' class="{kind}"' if kind else ""
    inside = f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="wide"><table{named_kind}>{inside}</table></div>'


def words(pairs: Iterable[tuple[str, str]]) -> str:
    """A list of (word, text) pairs; both are plain text."""
    body = "".join(f"<dt>{escape(w)}</dt><dd>{escape(t)}</dd>" for w, t in pairs)
    return f"<dl>{body}</dl>" if body else ""


def anchor(run: str, line: int | None = None) -> str:
    """The id of a run, or of one of its log lines."""
    return run if line is None else f"{run}-L{line}"


@dataclass(frozen=True, slots=True)
class Links:
    """Links to the runs that the page has a place for; other runs are plain text."""

    known: frozenset[str]
    evidence: Mapping[str, Evidence]

    @classmethod
    def of(cls, document: Document) -> Links:
        """Those of one page."""
        return cls(frozenset(r.id for r in document.runs), document.evidence)

    def href(self, run: str) -> str | None:
        """Where a run is on the page; None when it is not."""
        return f"#{anchor(run)}" if run in self.known else None

    def run(self, run: str) -> str:
        """A run, and the log lines that were kept of it."""
        if run not in self.known:
            return escape(run)
        link = f'<a href="#{escape(anchor(run))}">{escape(run)}</a>'
        proof = self.evidence.get(run)
        if proof is None or proof.span is None:
            return link
        first, last = proof.span
        words = f"L{first}" if first == last else f"L{first}–{last}"
        return f'{link} <a href="#{escape(anchor(run, first))}">{words}</a>'

    def runs(self, runs: Sequence[str]) -> str:
        """Some runs, folded."""
        if not runs:
            return ""
        links = ", ".join(self.run(run) for run in runs[:SHOWN_RUNS])
        more = f" and {len(runs) - SHOWN_RUNS} more" if len(runs) > SHOWN_RUNS else ""
        summary = count(len(runs), "run")
        return f'<details class="refs"><summary>{summary}</summary>{links}{more}</details>'
