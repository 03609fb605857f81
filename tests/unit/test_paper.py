"""Files that are made from a ledger: written where asked for, and never over a ledger."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from reports import committed

from flywheel.cli import app as cli, paper
from flywheel.errors import UsageError
from flywheel.simulate import command as simulate

ROOT = Path(__file__).parents[2]


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


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    paper.write(page, "the old page")
    page.chmod(0o640)
    with pytest.raises(UnicodeEncodeError):
        paper.write(page, "x" * 100_000 + "\ud800")
    assert page.read_text() == "the old page"
    paper.write(page, "the new page")
    assert page.read_text() == "the new page"
    assert page.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [page]


def test_a_link_leads_to_the_file_that_is_written(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    page, link = tmp_path / "there" / "page.html", tmp_path / "link.html"
    page.write_text("old")
    link.symlink_to(page)
    paper.write(link, "new")
    assert link.is_symlink()
    assert page.read_text() == "new"
    page.unlink()
    paper.write(link, "newer")
    assert link.is_symlink()
    assert page.read_text() == "newer"


def test_asking_whether_a_file_can_be_written_leaves_none(tmp_path: Path) -> None:
    assert paper.writable(tmp_path / "a" / "x.json") == tmp_path / "a" / "x.json"
    assert list((tmp_path / "a").iterdir()) == []


def test_a_file_in_the_place_of_a_folder_is_told_as_that(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file is no folder"):
        paper.write(tmp_path / "file" / "x.html", "page")


def test_a_pipe_is_given_the_page_and_is_opened_once(tmp_path: Path) -> None:
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reader.start()
    paper.write(pipe, "page")
    reader.join(timeout=10)
    assert got == ["page"]


def test_a_file_without_an_end_is_not_read(
    night: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["readjudicate", "--rule", "/dev/zero"], ["report", "diff", "/dev/zero", "best"],
                  ["report", "width", "--profile", "/dev/zero"]):  # fmt: skip
        assert cli.main([*words, "--ledger", str(night)]) == 2
        assert "/dev/zero" in capsys.readouterr().err


@pytest.mark.parametrize("processes", ["1", "2"])
def test_ctrl_c_during_a_study_is_one_sentence_and_leaves_no_file(
    processes: str, tmp_path: Path
) -> None:
    out, docs = tmp_path / "out.json", tmp_path / "docs"
    study = subprocess.Popen(
        [sys.executable, "-m", "flywheel.simulate", "--processes", processes, "--out", str(out),
         "--docs", str(docs)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        for _ in range(300):
            # Made as the study begins.
            if docs.exists():
                break
            time.sleep(0.1)
        time.sleep(0.3)
        os.killpg(study.pid, signal.SIGINT)
        said = study.communicate(timeout=30)
    finally:
        if study.poll() is None:
            study.kill()
    assert said == ("", "flywheel.simulate: interrupted.\n")
    assert study.returncode == 1
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
