"""The runs at the end of the page: manifest, log lines, and the command that repeats each. Pure."""

from __future__ import annotations

from html import escape

from flywheel.box.clock import count
from flywheel.report.document import Document, RunLine
from flywheel.report.evidence import Evidence
from flywheel.report.markup import anchor, section, words
from flywheel.report.words import stamp


def runs(document: Document) -> str:
    """Every run of the period, in the order planned."""
    body = "".join(_run(run, document.evidence.get(run.id)) for run in document.runs)
    return section(f"Runs {len(document.runs)}", body)


def _run(run: RunLine, known: Evidence | None) -> str:
    loud = "" if run.outcome in ("ok", "running") else ' class="loud"'
    reason = ": ".join(part for part in (run.code, run.detail) if part)
    head = (
        f'<h3>{escape(run.id)}</h3> <span{loud}>{escape(run.outcome)}</span> '
        f'{escape(reason)} <span class="word">{escape(run.label)} · {escape(run.block)} · '
        f"{stamp(run.started_utc)} UTC · {run.wall_s:.1f} s</span>"
    )
    place = escape(anchor(run.id))
    return f'<article class="run" id="{place}">{head}{_folded(run, known)}</article>'


def _folded(run: RunLine, known: Evidence | None) -> str:
    if known is None:
        body, summary = "", "how to repeat it"
    else:
        kept = f"{len(known.lines)} of {count(known.total, 'log line')}"
        summary = f"manifest, {kept}, how to repeat it"
        body = words(known.manifest) + _log(run, known)
    sealed = f'<p class="note">log sha256 <code>{escape(run.sha256)}</code></p>'
    command = f"<pre>{escape(run.repeat)}</pre>"
    log = f"<pre>flywheel report run {escape(run.id)} --log</pre>" if run.sha256 else ""
    return (
        f"<details><summary>{summary}</summary>{body}{sealed if run.sha256 else ''}"
        f"{command}{log}</details>"
    )


def _log(run: RunLine, known: Evidence) -> str:
    items = "".join(
        f'<li id="{escape(anchor(run.id, line.number))}"{" class=loud" if line.failed else ""}>'
        f"<span>L{line.number}</span><span>{escape(line.text)}</span></li>"
        for line in known.lines
    )
    return f'<ol class="log">{items}</ol>' if items else ""
