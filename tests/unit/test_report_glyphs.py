"""Bands and sparks drawn in characters, losses in words, and ASCII where there is no more."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from reports import committed

from flywheel.cli import app as cli
from flywheel.report import (
    glyphs,
    words,
)
from flywheel.statistics.decide import at_most


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository's own measured night."""
    return committed(tmp_path_factory.mktemp("pages"))


def test_a_band_is_drawn_in_cells() -> None:
    scale = glyphs.Axis(-0.1, 0.1)
    whole = glyphs.bar(0.051, 0.021, 0.081, scale, 20, glyphs.UNICODE)
    assert whole == " " * 10 + "┊ ├──●──┤"
    drawn = glyphs.bar(0.05, None, None, scale, 20, glyphs.ASCII)
    assert drawn[0] == "<"
    assert drawn[-1] == ">"
    assert drawn.count("o") == 1
    assert drawn.isascii()
    off = glyphs.bar(-0.5, -0.6, -0.4, scale, 20, glyphs.UNICODE)
    assert off == "◂" + " " * 9 + "┊"
    assert glyphs.bar(0.5, 0.4, 0.6, scale, 20, glyphs.UNICODE)[-1] == "▸"


def test_sparks_follow_the_values() -> None:
    assert glyphs.spark([1, 2, 3, 4, 5, 6, 7, 8], 8) == glyphs.SPARKS
    assert glyphs.spark([1.0], 8) == glyphs.spark([], 8) == ""
    assert len(set(glyphs.spark([2, 2, 2], 8))) == 1
    assert len(glyphs.spark(list(range(1000)), 40)) == 40
    assert glyphs.spark([1, float("nan"), 2], 8) == "▁█"


def test_output_without_utf8_is_ascii_and_no_traceback(
    night: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    monkeypatch.setattr("sys.stdout", stream)
    assert cli.main(["report", "--ledger", str(night)]) == 0
    stream.flush()
    text = raw.getvalue().decode("ascii")
    assert "canaries" in text
    assert "--o" in text


def test_a_loss_is_told_as_a_cost() -> None:
    assert words.bound(0.019) == "less than 1.9 %"
    assert words.bound(-0.138) == "costs over 13.8 %"
    assert at_most(-0.1294) == "costs more than 13.8 %"
    assert at_most(0.0) == "worth less than 0.0 %"
