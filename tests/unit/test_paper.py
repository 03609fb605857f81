"""Files that are made from a ledger: written where asked for, and never over a ledger."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from reports import committed

from flywheel.cli import app as cli
from flywheel.simulate import __main__ as simulate


@pytest.fixture
def night(tmp_path: Path) -> Path:
    """The repository's own measured night."""
    return committed(tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        ["report", "--html"], ["report", "width", "--html"], ["levers", "write", "--path"],
    ],
)  # fmt: skip
def test_a_ledger_is_not_overwritten_by_what_is_made_from_it(
    words: list[str], night: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = night.read_bytes()
    assert cli.main([*words, str(night), "--ledger", str(night)]) == 2
    assert "is a ledger; give the new file another name" in capsys.readouterr().err
    assert night.read_bytes() == before


def test_a_study_that_cannot_be_stored_is_not_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulate, "study", lambda *_, **__: pytest.fail("it ran"))
    (tmp_path / "file").touch()
    for option in ("--out", "--docs"):
        assert simulate.main([option, str(tmp_path / "file" / "x")]) == 2
        assert "cannot be written" in capsys.readouterr().err


def test_two_files_at_once_are_refused(night: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["run", "r00012", "--log", "--config"],
                  ["width", "--imported", "x", "--profile", "y"]):  # fmt: skip
        assert cli.main(["report", *words, "--ledger", str(night)]) == 2
        assert "give one of them" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("delta_min", "x", "a number"), ("n_max", 1e30, "a whole number"), ("n_min", True, "a whole"),
     ("version", 3, "text"), ("screen", None, "a number")],
)  # fmt: skip
def test_a_rule_with_a_field_of_another_kind_is_told_so(
    field: str, value: object, said: str, night: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    rule = tmp_path / "rule.json"
    rule.write_text(json.dumps({field: value}))
    words = ["readjudicate", "--rule", str(rule), "--dry-run", "--ledger", str(night)]
    assert cli.main(words) == 2
    assert f"{field} must be {said}" in capsys.readouterr().err
