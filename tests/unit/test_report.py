"""One document, rendered three ways that agree."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from records import NOW, World, drive, lever
from rich.console import Console

from flywheel import judge, plan
from flywheel.campaign import QUICK
from flywheel.errors import LedgerError
from flywheel.ledger import views
from flywheel.ledger.store import Ledger
from flywheel.levers_md import render as render_levers
from flywheel.report import html, plots, tables
from flywheel.report.document import Document, Row, Step
from flywheel.report.gather import describe, gather

LEVERS = [
    lever("fast"),
    lever("slow", {"moe": "gather"}),
    lever("flat", {"attention": "<b>"}),
    lever("wrong", {"linear": "rows"}),
    lever("dead", {"hyper": "fused"}),
    lever("twin", {"threads": 2}),
]


def fails(step: plan.NextBlock) -> tuple[str, str] | None:
    """One lever is incorrect, one never runs, one loses its first block."""
    if step.lever.name == "wrong":
        return "gate_failed", "lossless, arm B, prompt 5: token 212 is 7, plain decode says 8"
    if step.lever.name == "dead":
        return "seal_missing", "the log stops"
    if step.lever.name == "slow" and step.number == 1:
        return "guard_kill", "1.9 GB free, falling 10.8 GB/s"
    return None


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """A finished campaign with every kind of ending."""
    opened = Ledger.open(tmp_path_factory.mktemp("report") / "ledger.db")
    judge.open_campaign(opened, QUICK, start={"threads": 1}, box="h200-1", now_utc=NOW)
    effects = {'{"threads":2}': -0.05, '{"moe":"gather"}': 0.04}
    drive(opened, LEVERS, World(effects, fails=fails))
    return opened


@pytest.fixture(scope="module")
def document(ledger: Ledger) -> Document:
    """Its report."""
    return gather(ledger, LEVERS)


def on_terminal(document: Document, width: int) -> str:
    out = io.StringIO()
    tables.render(document, Console(file=out, width=width, highlight=False))
    return out.getvalue()


def flat(text: str) -> str:
    return " ".join(text.split())


def test_the_canary_line_comes_first(document: Document) -> None:
    text = on_terminal(document, 120)
    heads = [line.split()[0] for line in text.splitlines() if line[:1].isalpha()]
    assert heads[:4] == ["campaign", "canaries", "incumbent", "gain"]
    assert "0 of 1 promoted" in text
    assert "between loads" in text


def test_the_first_screen_says_what_was_learnt(document: Document) -> None:
    text = flat(on_terminal(document, 160))
    assert re.search(
        r"incumbent \S+ ms/token \[\S+, \S+\] · \S+ tok/s · tau 2.00 of 4 at width 3", text
    )
    assert "provisional" in text
    assert re.search(r"gain [45]\.\d % \[\S+, \S+\] against the frozen first configuration", text)
    row = r"threads 1 -> 2 -[45]\.\d % time \[-\S+, -\S+\] \d blocks predicted -3 %"
    assert re.search(row, text)
    assert "less than" in text
    assert "REGRESSION in code, prose" in text
    assert "incorrect 1" in text
    assert "token 212" in text
    assert "guard_kill, 1.9 GB free, falling 10.8 GB/s (retried, ok)" in text
    assert "seal_missing, the log stops (deferred)" in text
    assert "twin is the same change as fast" in text
    assert "next nothing: no lever is left to try" in text


def test_detail_of_the_best(document: Document) -> None:
    detail = document.detail
    assert detail is not None
    assert [c.name for c in detail.categories] == ["code", "prose"]
    assert detail.total.tau == 2.0
    assert detail.total.speedup == pytest.approx(2.0, abs=0.01)
    assert detail.accepted == ((1, 0.625), (2, 0.25), (3, 0.125))
    assert dict(detail.step_cost_ms) == {1: 4.5, 2: 5.0, 3: 5.5, 4: 6.0}
    assert detail.prefill_tok_s == pytest.approx(5000)
    assert detail.ttft_ms == pytest.approx(2.1)
    assert detail.peak_bytes == 10**9
    assert all(re.fullmatch(r"lines \d+-\d+", where) for _, where in detail.runs)
    text = flat(on_terminal(document, 100))
    for figure in ("62 %", "C(4) 6 ms", "5000 tok/s", "2.1 ms", "1.00 GB"):
        assert figure in text


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_it_survives_any_width(document: Document, width: int) -> None:
    text = on_terminal(document, width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "-> 2" in text
    assert "\x1b" not in text


def test_html_is_one_file_that_fetches_nothing(document: Document) -> None:
    page = html.render(document)
    assert not re.search(r"(?:src|href)=\"(?!#)", page)
    assert "<script" not in page
    assert "@import" not in page
    assert "url(" not in page
    assert "http://" not in page
    assert "https://" not in page
    assert "prefers-color-scheme:dark" in page
    assert "@media print" in page


def test_every_link_has_its_target_and_ids_are_unique(document: Document) -> None:
    page = html.render(document)
    ids = re.findall(r'id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    links = set(re.findall(r'href="#([^"]+)"', page))
    assert links - set(ids) == set()
    assert "--config runs/r000010/config.json" in page


def test_names_from_outside_are_escaped(document: Document) -> None:
    page = html.render(document)
    assert "attention -&gt; &lt;b&gt;" in page
    assert "<b>," not in page


def test_plots_are_well_formed(document: Document) -> None:
    page = html.render(document)
    drawings = re.findall(r"<svg.*?</svg>", page)
    assert len(drawings) == 4
    for drawing in drawings:
        ElementTree.fromstring(drawing)
        assert "nan" not in drawing
        assert "inf" not in drawing


def test_plots_without_data_are_absent() -> None:
    assert plots.forest([]) == plots.timeline([]) == plots.bars("x", []) == ""
    assert plots.bars("x", [("a", 0.0, "0")]) == ""


def test_the_forest_survives_unbounded_bands_and_long_names() -> None:
    row = Row(1, (), "a" * 80, "n", "inconclusive", "budget", "x", 0.01, None, None, 2, 0.03, ())
    drawing = plots.forest([row, replace(row, null=True, low=0.0, high=0.02, mean=None)])
    ElementTree.fromstring(drawing)
    assert "…" in drawing
    ElementTree.fromstring(plots.timeline([Step(1, "a", "d", -0.01)]))


def test_the_three_forms_agree(document: Document) -> None:
    data = json.loads(json.dumps(document.as_dict()))
    page, text = html.render(document), flat(on_terminal(document, 200))
    for figure in ("canaries", "incumbent", "gain"):
        assert data[figure]["text"] in text
        assert data[figure]["text"] in page
    assert data["budget"] in text
    for row in data["rows"]:
        if not row["null"]:
            assert row["said"] in text
    assert data["config"] == {"threads": 2}


def test_a_report_in_the_middle_of_a_campaign(tmp_path: Path) -> None:
    opened = Ledger.open(tmp_path / "ledger.db")
    with pytest.raises(LedgerError, match="no campaign"):
        gather(opened, [])
    judge.open_campaign(opened, QUICK, start={}, box="box", now_utc=NOW)
    empty = gather(opened, [lever()])
    assert empty.incumbent.text == "not measured yet"
    assert empty.detail is None
    assert "null 1 of 4" in empty.next
    assert "nothing promoted" in on_terminal(empty, 80)
    assert html.render(empty).count("<p>none</p>") == 5
    stop = drive(opened, [], World(fails=lambda _s: ("gate_failed", "lossless, arm B")))
    assert stop.halt
    halted = gather(opened, [])
    assert halted.next.startswith("HALTED: a gate failed on the null block")
    assert halted.voids[0].after == "to be retried"


def test_the_next_step_in_words() -> None:
    priced = plan.PricedOut(lever(), "v0001", {}, {}, "priced out: x")
    assert describe(priced) == "threads -> 2: priced out: x"
    assert describe(plan.Stop("done")) == "nothing: done"


def test_levers_md_is_generated_and_deterministic(ledger: Ledger) -> None:
    with ledger.reading() as connection:
        view = views.load(connection)
    waiting = lever("waiting", {"x": "a|b"}, predicted_gain=0.02)
    declared = [*LEVERS, waiting, lever("there", {"draft_width": 3})]
    text = render_levers(view, declared, {"draft_width": 3})
    assert text == render_levers(view, list(reversed(declared)), {"draft_width": 3})
    assert "## Open: 1\n" in text
    assert "| waiting | `x -> a\\|b` | 2 % |" in text
    assert "In the incumbent already: there (`draft_width -> 3`)" in text
    assert re.search(r"\| fast \| `threads -> 2` \| saves [45]\.\d % \[.*\], E .* at alpha", text)
    assert re.search(r"\| flat \|.*worth less than \S+ % \(mean", text)
    assert re.search(r"\| wrong \|.*token 212", text)
    assert re.search(r"\| dead \|.*deferred after 3 void runs", text)
    assert "## Inconclusive: 0" in text
