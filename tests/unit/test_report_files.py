"""LEVERS.md, RUNS.md and HEAD_REGISTRY.md: written once, checked, whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from reports import committed, finished_view

from flywheel.cli import app as cli
from flywheel.ledger import views
from flywheel.ledger.store import Ledger
from flywheel.report import (
    heads_md,
    runs_md,
)


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository's own measured night."""
    return committed(tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> views.View:
    """A fabricated night with every ending."""
    return finished_view(tmp_path_factory.mktemp("made"))


def test_markdown_is_written_once_and_checked(
    night: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["report", "--ledger", str(night), "--md", str(tmp_path / "md")]
    assert cli.main([*words, "--check"]) == 1
    assert not (tmp_path / "md").exists()
    assert cli.main(words) == 0
    names = {p.name for p in (tmp_path / "md").iterdir()}
    assert names == {"LEVERS.md", "RUNS.md", "HEAD_REGISTRY.md"}
    assert cli.main([*words, "--check"]) == 0
    (tmp_path / "md" / "RUNS.md").write_text("edited")
    capsys.readouterr()
    assert cli.main([*words, "--check", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["stale"] == ["RUNS.md"]


def test_runs_md_lists_every_run_with_its_reason(made: views.View) -> None:
    text = runs_md.render(made)
    assert text == runs_md.render(made)
    for block in made.blocks():
        for run in block.runs:
            assert f"| {run.id} |" in text
    assert "seal_missing: the log stops" in text
    assert runs_md.render(views.View()).endswith("No run yet.\n")


def test_the_head_registry_says_when_there_is_none(made: views.View) -> None:
    assert "No head arm has been recorded" in heads_md.render(made)


def test_imported_heads_stand_apart_in_the_registry() -> None:
    heads = [heads_md.ImportedHead("as it stood", "s1", "promoted", "refused", "3.58 | needs 3.66")]
    text = heads_md.render(views.View(), heads)
    assert "No head arm has been recorded by a run" in text
    assert "## Imported, as it stood: 1" in text
    assert "| s1 | promoted | refused | 3.58 \\| needs 3.66 |" in text


def test_a_ledger_without_a_campaign_has_projections_but_no_night(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Ledger.open(tmp_path / "empty.db").close()
    words = ["report", "--ledger", str(tmp_path / "empty.db")]
    assert cli.main([*words, "--md", str(tmp_path), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["stale"]) == 3
    assert cli.main(words) == 1
    assert "no campaign" in capsys.readouterr().err
