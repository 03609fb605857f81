"""The page in a real browser: nothing scrolls sideways, nothing is blank, dark is dark."""

from __future__ import annotations

from pathlib import Path

import chromium
import pytest
from foreign_logs import log, suite
from records import lever
from reports import LEVERS, committed, finished

from flywheel.cli import app as cli, levers as cli_levers
from flywheel.ledger.store import Ledger
from flywheel.report import html
from flywheel.report.gather import gather

pytestmark = pytest.mark.skipif(
    chromium.binary() is None,
    reason="NO SCREENSHOTS: there is no chromium or chrome here; install one (apt-get install "
    f"chromium) or name it in {chromium.VARIABLE}",
)
LONG = "a_field_with_a_very_long_name_that_no_line_could_ever_hold_without_breaking_somewhere"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The repository's own night."""
    path = committed(tmp_path_factory.mktemp("screens"))
    return html.render(gather(Ledger.open(path), cli_levers.known(path), with_evidence=True))


def test_no_width_scrolls_sideways(page: str, tmp_path: Path) -> None:
    for told in chromium.layout(page, [320, 360, 768, 1280], tmp_path):
        assert told["scroll"] <= told["width"], told
        assert told["wide"] == [], told
        assert told["height"] > 1000, told


def test_long_names_break_rather_than_widen(tmp_path: Path) -> None:
    levers = [*LEVERS[:2], lever(LONG, {LONG: LONG})]
    opened = finished(tmp_path / "ledger.db", levers, box=LONG)
    page = html.render(gather(opened, [*levers, lever("w", {"q": LONG})], with_evidence=True))
    for told in chromium.layout(page, [320, 1280], tmp_path):
        assert told["scroll"] <= told["width"], told
        assert told["wide"] == [], told


def test_the_first_screen_is_drawn_in_light_and_dark(page: str, tmp_path: Path) -> None:
    kinds = [(w, h, dark) for w, h in ((360, 800), (1280, 900)) for dark in (False, True)]
    pictures = [
        chromium.screenshot(page, w, h, tmp_path / f"{w}-{dark}.png", dark=dark)
        for w, h, dark in kinds
    ]
    for (width, height, dark), seen in zip(
        kinds, chromium.colours(pictures, tmp_path), strict=True
    ):
        assert sum(seen.values()) == width * height
        ground = max(seen, key=lambda colour: seen[colour])
        assert ground == ("141618" if dark else "fcfcfa")
        assert 0.5 < seen[ground] / (width * height) < 0.97
        assert len(seen) > 40


def test_a_link_to_a_log_line_unfolds_it(page: str, tmp_path: Path) -> None:
    run = page.partition('<article class="run" id="')[2].partition('"')[0]
    line = page.partition(f'id="{run}-L')[2].partition('"')[0]
    block = page.partition('<ul class="blocks" id="')[2].partition('"')[0]
    for place in (f"{run}-L{line}", run, block):
        for told in chromium.layout(page, [360, 1280], tmp_path, at=place):
            assert told["target"] == place
            assert told["seen"], told


def test_a_page_of_imports_and_a_page_of_widths_fit_a_phone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, ledger = f"{LONG}.log", ["--ledger", str(tmp_path / "l.db")]
    (tmp_path / name).write_text(log(suite((6, 3))))
    assert cli.main(["import", "dsv4-log", str(tmp_path / name), *ledger]) == 0
    assert cli.main(["report", "--html", str(tmp_path / "a.html"), *ledger]) == 0
    words = ["report", "width", "--imported", name, "--html", str(tmp_path / "b.html")]
    assert cli.main([*words, *ledger]) == 0
    assert "Cost of a step by rows</b></figcaption>" in (tmp_path / "b.html").read_text()
    for made in ("a.html", "b.html"):
        for told in chromium.layout((tmp_path / made).read_text(), [320], tmp_path):
            assert told["scroll"] <= told["width"], told
            assert told["wide"] == [], told
