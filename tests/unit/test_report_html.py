"""The report as one file: self-contained, escaped, linked, accessible."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from foreign_logs import log
from records import NOW, lever
from reports import LEVERS, finished

from flywheel.cli import app as cli
from flywheel.ledger.store import Ledger
from flywheel.loop import planned
from flywheel.report import glyphs, html, plots
from flywheel.report.document import Document, Row
from flywheel.report.evidence import evidence
from flywheel.report.gather import gather
from flywheel.report.trace import Epoch, Level, Noise, Trace
from flywheel.statistics.campaign import QUICK

HOSTILE = "<script>alert(1)</script>"
BREAKOUT = "\"'><img src=x onerror=alert(2)></style></title>"
VOID_TAGS = {"meta", "link", "br", "img", "hr", "input"}


class Tree(HTMLParser):
    """Every tag with its attributes; fails on a tag that closes what is not open."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID_TAGS:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> is out of place"


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Document:
    """A finished campaign with its log lines."""
    opened = finished(tmp_path_factory.mktemp("html") / "ledger.db")
    return gather(opened, LEVERS, with_evidence=True)


@pytest.fixture(scope="module")
def page(document: Document) -> str:
    """Its page."""
    return html.render(document)


def test_the_page_is_one_file_that_fetches_nothing(page: str) -> None:
    tree = Tree(page)
    assert tree.open == []
    for tag, attributes in tree.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        assert "style" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "action", "data"):
            assert (attributes.get(name) or "#").startswith("#")
    assert "@import" not in page
    assert "url(" not in page
    assert "://" not in page
    assert "default-src 'none'" in page


def test_it_is_made_for_light_and_dark_phone_and_paper(page: str) -> None:
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page
    assert "width=device-width" in page


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_colour_has_contrast(page: str, dark: bool) -> None:
    rules = re.findall(r":root \{(.*?)\}", page, re.DOTALL)
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", rules[dark]))
    for ground in ("paper", "raised"):
        for ink in ("ink", "dim", "link", "good", "bad", "mid", "quiet"):
            ratio = contrast(colours[ink], colours[ground])
            assert ratio >= 4.5, f"{ink} on {ground} is only {ratio:.2f}"


def contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        r, g, b = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_every_link_has_its_target_and_ids_are_unique(page: str) -> None:
    tree = Tree(page)
    ids = [a["id"] for _, a in tree.tags if a.get("id")]
    assert len(ids) == len(set(ids))
    links = {a["href"] for t, a in tree.tags if t == "a" and "href" in a}
    assert {link.removeprefix("#") for link in links if link} <= set(ids)


def test_every_decision_leads_to_its_runs_and_log_lines(page: str, document: Document) -> None:
    measured = [row for row in document.rows if row.ending != "void"]
    assert len(measured) == 5
    for row in measured:
        part = page[page.index(f'id="d{row.decision}-blocks"') :].partition("</ul>")[0]
        for run in row.runs:
            assert f'href="#{run}"' in part
            assert re.search(rf'href="#{run}-L\d+"', part)
    for run in document.runs:
        part = page[page.index(f'<article class="run" id="{run.id}"') :].partition("</article>")[0]
        assert f"flywheel report run {run.id} --config" in part
        assert run.sha256 in part
        assert "&quot;event&quot;: &quot;point&quot;" in part or run.outcome != "ok"


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    levers = [
        lever("fast", claim=HOSTILE),
        lever(HOSTILE, {"attention": BREAKOUT}),
        lever(BREAKOUT, {HOSTILE: HOSTILE}),
        lever("dead", {"hyper": HOSTILE}),
    ]
    opened = finished(tmp_path / "ledger.db", levers, box=BREAKOUT)
    page = html.render(gather(opened, [*levers, lever("z", {"q": HOSTILE})], with_evidence=True))
    tree = Tree(page)
    assert tree.open == []
    assert [t for t, _ in tree.tags].count("script") == 1
    assert [t for t, _ in tree.tags].count("style") == 1
    assert "img" not in {t for t, _ in tree.tags}
    assert "&lt;script&gt;alert(1)" in page
    assert not any(name.startswith("on") for _, a in tree.tags for name in a)


def test_plots_are_well_formed_and_described(page: str) -> None:
    drawings = re.findall(r'<svg[^>]*role="img".*?</svg>', page)
    assert len(drawings) > 6
    for drawing in drawings:
        tree = ElementTree.fromstring(drawing)
        assert (tree.findtext("title") or "").strip()
        assert not re.search(r'"-?(nan|inf)', drawing)
    whole = [d for d in drawings if "viewBox=\"0 0 460" in d]
    assert len(whole) == 5
    assert all(ElementTree.fromstring(d).findtext("desc") for d in whole)


def test_tables_have_heads_with_scope(page: str) -> None:
    heads = [a for t, a in Tree(page).tags if t == "th"]
    assert heads
    assert all(a.get("scope") in ("col", "row", "rowgroup") for a in heads)


def test_a_band_without_ends_is_drawn_with_arrows() -> None:
    row = Row(1, (), "a" * 80, "n", "inconclusive", "budget", "x", 0.01, None, None, 2, 0.03, ())
    scale = glyphs.axis([(0.01, None, None), (0.02, 0.01, 0.03)])
    drawn = plots.forest_cell(row, scale)
    ElementTree.fromstring(drawn)
    assert drawn.count('class="open"') == 2
    assert "unbounded to unbounded" in drawn
    bounded = plots.forest_cell(replace(row, low=0.005, high=0.012), scale)
    assert 'class="open"' not in bounded
    assert 'class="dot"' not in plots.forest_cell(replace(row, mean=None), scale)


def test_plots_without_data_are_absent_and_with_one_point_whole() -> None:
    assert plots.incumbent(Trace(), str) == plots.noise(Trace(), str) == ""
    assert plots.bars("x", []) == plots.bars("x", [("a", 0.0, "0")]) == ""
    one = Trace(
        "r", (Level("2026-11-28T22:00:00Z", 8.0, "b1", "r1", 0),),
        (Epoch(None, "first", 8.0, None, None, 1),),
        (Noise("2026-11-28T22:00:00Z", "b1", "r1", 0.01, None),),
    )  # fmt: skip
    for drawn in (plots.incumbent(one, str), plots.noise(one, str)):
        ElementTree.fromstring(drawn)
        assert 'href="r1"' in drawn
    assert "href" not in plots.incumbent(one, lambda _: None)


def test_many_points_are_thinned_evenly() -> None:
    levels = tuple(
        Level(f"2026-11-28T{i // 60:02d}:{i % 60:02d}:00Z", 8 + i % 7, f"b{i}", f"r{i}", 0)
        for i in range(1400)
    )
    trace = Trace("r", levels, (Epoch(None, "first", 8.0, 7.0, 9.0, 1400),), ())
    drawn = plots.incumbent(trace, lambda _: None)
    assert drawn.count("<circle") == 467
    assert "block b0," in drawn
    assert "block b1398," in drawn


def test_kept_lines_are_those_that_numbers_stand_on() -> None:
    nonce = "ab" * 16
    events = ["start", "heartbeat", *["point", "gate"] * 40, "end"]
    lines = ["prose"] + [f'@{nonce} {{"event":"{e}","pass":true}}' for e in events]
    found = evidence({"nonce": nonce}, "\n".join(lines), ok=True, most=9)
    assert len(found.lines) == 9
    assert found.total == len(lines)
    assert all('"point"' in line.text for line in found.lines[:-1])
    assert '"end"' in found.lines[-1].text
    assert nonce not in found.lines[0].text
    dead = evidence({"nonce": nonce}, "\n".join(lines[:9]), ok=False, most=9)
    assert [line.number for line in dead.lines] == [4, 5, 6, 7, 8, 9]
    bad = f'@{nonce} {{"event":"gate","pass":false}}'
    failed = evidence({"nonce": nonce}, "\n".join([*lines[:3], bad, *lines[3:]]), ok=True, most=9)
    assert [line.number for line in failed.lines if line.failed] == [4]
    assert evidence({}, None, ok=False, most=9).lines == ()
    replayed = f'@{"cd" * 16} {{"event":"gate","pass":false}}'
    assert not evidence({"nonce": nonce}, replayed, ok=True, most=9).lines


def test_runs_of_an_earlier_campaign_are_named_without_a_dead_link(tmp_path: Path) -> None:
    opened = finished(tmp_path / "ledger.db")
    planned.open_campaign(opened, QUICK, start={"threads": 2}, box="h200-1", now_utc=NOW)
    page = html.render(gather(opened, LEVERS, with_evidence=True))
    tree = Tree(page)
    ids = {a["id"] for _, a in tree.tags if a.get("id")}
    links = {a["href"] for t, a in tree.tags if t == "a" and a.get("href")}
    assert {link.removeprefix("#") for link in links if link} <= ids
    assert "<circle" in page
    assert "Runs 0" not in page


def test_a_ledger_of_imports_alone_gives_a_page_that_says_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = tmp_path / "<img src=x onerror=alert(1)>.log"
    hostile.write_text(log())
    (tmp_path / "cut.log").write_text(log(end=False))
    ledger = ["--ledger", str(tmp_path / "l.db")]
    assert cli.main(["import", "dsv4-log", str(hostile), str(tmp_path / "cut.log"), *ledger]) == 1
    assert cli.main(["report", "--html", str(tmp_path / "page.html"), *ledger]) == 0
    assert "no campaign of ours yet" in capsys.readouterr().out
    page = (tmp_path / "page.html").read_text()
    tree = Tree(page)
    assert tree.open == []
    assert "img" not in {t for t, _ in tree.tags}
    assert "default-src 'none'" in page
    assert "Imported 1 decode log, 1 refused" in page
    assert "&lt;img src=x onerror=alert(1)&gt;.log" in page
    assert "refused: no_end" in page
    assert cli.main(["report", "--since", "zzz", *ledger]) == 2


def test_a_ledger_of_nothing_gives_no_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Ledger.open(tmp_path / "l.db").close()
    page = tmp_path / "page.html"
    assert cli.main(["report", "--html", str(page), "--ledger", str(tmp_path / "l.db")]) == 1
    assert "no campaign yet" in capsys.readouterr().err
    assert not page.exists()
