"""Imported history in a report: alone, and beside our own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from foreign_logs import import_history
from records import NOW
from reports import committed

from flywheel.cli import app as cli
from flywheel.ledger.store import Ledger
from flywheel.report import (
    html,
    tables,
)
from flywheel.report.gather import gather


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository's own measured night."""
    return committed(tmp_path_factory.mktemp("pages"))


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A ledger that holds imported history and nothing else."""
    opened = Ledger.open(tmp_path / "foreign.db")
    import_history(opened, NOW)
    opened.close()
    return opened.path


def test_a_ledger_of_imported_history_alone_shows_it(
    foreign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["report", "--ledger", str(foreign)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("no campaign of ours yet")
    assert "imported     1 decode log, 1 table" in text
    assert "tokens/forward" in text
    assert cli.main(["report", "--ledger", str(foreign), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["campaign"] is None
    assert [one["name"] for one in told["imported"]] == ["decode.txt", "arms.txt"]


def test_imported_history_is_named_beside_our_own(night: Path, tmp_path: Path) -> None:
    opened = Ledger.open(shutil.copy(night, tmp_path / "both.db"))
    import_history(opened, NOW)
    document = gather(opened, [], with_evidence=True)
    opened.close()
    printed = "\n".join(line.text for line in tables.lines(document, tables.Page(100)))
    assert "imported " in printed
    assert "<h2>Imported " in html.render(document)
