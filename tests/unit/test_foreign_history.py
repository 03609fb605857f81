"""Imported history is kept once, apart, and comes out of the ledger as it went in."""

from __future__ import annotations

import gzip
import json
import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from foreign_logs import GUARD, Point, log, suite
from records import NOW, World, drive, lever

from flywheel import ruler
from flywheel.cli import app as cli
from flywheel.errors import LedgerError, RulerMismatch
from flywheel.foreign import history, reading
from flywheel.ledger import models, views
from flywheel.ledger.rebuild import rebuild
from flywheel.ledger.store import Ledger
from flywheel.loop import planned
from flywheel.statistics.campaign import QUICK


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files to import, beside an empty place for a ledger."""
    (tmp_path / "good.log").write_text(log(suite((6, 3))))
    (tmp_path / "better.log").write_text(log(suite((6, 4), eos=(1, 2, 3)), head="/h/x"))
    (tmp_path / "cut.log").write_text(log(end=False))
    (tmp_path / "narrow.log").write_text(log([Point(n, (4, 1), width=5) for n in range(9)]))
    (tmp_path / "guard.log").write_text(GUARD)
    (tmp_path / "notes.txt").write_text("[spec] LOSSLESS GATE: PASS, they said\n")
    (tmp_path / "arms.json").write_text(json.dumps({"bar_percent": 3.5, "arms": [
        {"name": "a", "draft_width": 6, "suite_tau": 3.0, "suite_tok_s": 9, "status": "baseline"},
        {"name": "b", "draft_width": 6, "suite_tau": 3.2, "suite_tok_s": 9, "status": "refused"},
    ]}))  # fmt: skip
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, Any]:
    status = cli.main(["import", *map(str, arguments), "--json"])
    return status, json.loads(capsys.readouterr().out)


def rows(path: Path) -> dict[str, int]:
    raw = sqlite3.connect(path)
    counts = {t: raw.execute(f"SELECT count(*) FROM {t}").fetchone()[0]
              for t in models.metadata.tables if t.startswith("foreign_")}
    raw.close()
    return counts


def test_importing_twice_adds_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [folder / n for n in ("good.log", "guard.log", "cut.log")]
    status, told = run(capsys, "dsv4-log", *files, "--ledger", folder / "l.db")
    assert status == 1
    assert [f["ledger"] for f in told["files"]] == ["added"] * 3
    before = rows(folder / "l.db")
    copy = folder / "another-name.log"
    copy.write_bytes((folder / "good.log").read_bytes())
    _, told = run(capsys, "dsv4-log", *files, copy, "--ledger", folder / "l.db")
    assert [f["ledger"] for f in told["files"]] == ["known"] * 4
    assert rows(folder / "l.db") == before


def test_a_refused_log_is_kept_with_its_reason_and_owns_no_number(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "dsv4-log", folder / "cut.log", folder / "notes.txt", "--ledger", folder / "l.db")
    counts = rows(folder / "l.db")
    assert (counts["foreign_log"], counts["foreign_reading"]) == (1, 1)
    assert counts["foreign_measurement"] == counts["foreign_ruler"] == 0
    _, listed = run(capsys, "list", "--ledger", folder / "l.db")
    assert [(i["name"], i["outcome"]) for i in listed] == [("cut.log", "refused")]
    assert listed[0]["reason"].startswith("no_end")


def test_the_database_refuses_a_number_of_a_refused_log_and_a_foreign_tau(folder: Path) -> None:
    ledger = Ledger.open(folder / "l.db")
    with ledger.transaction() as writer:
        for name in ("cut.log", "good.log"):
            history.append(writer, reading.read(folder / name), NOW)
    common = {"arm": "", "prompt": "1", "category": "c", "repeat": 9, "numerator": 1,
              "denominator": 1, "unit": "x", "counted": True, "line": 1}  # fmt: skip
    for number, outcome, metric in ((1, "ok", "m"), (1, "refused", "m"), (2, "ok", "tau")):
        with pytest.raises(LedgerError), ledger.transaction() as writer:
            writer.append(models.foreign_measurement, reading_id=number, outcome=outcome,
                          metric=metric, **common)
    ledger.close()


def test_a_file_is_stored_whole_or_not_at_all(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger.open(folder / "l.db")
    found = reading.read(folder / "good.log")
    broken = [*found.measurements(), found.measurements()[-1]]
    monkeypatch.setattr(reading.Reading, "measurements", lambda _self: tuple(broken))
    with pytest.raises(LedgerError), ledger.transaction() as writer:
        history.append(writer, found, NOW)
    ledger.close()
    assert set(rows(folder / "l.db").values()) == {0}


def test_a_dry_run_makes_no_ledger(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, told = run(capsys, "dsv4-log", folder / "good.log", "--dry-run", "--ledger",
                       folder / "l.db")
    assert (status, told["files"][0]["outcome"]) == (0, "ok")
    assert not (folder / "l.db").exists()


def test_a_missing_file_or_a_pipe_is_a_user_mistake(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("absent.log", "."):
        status, told = run(capsys, "dsv4-log", folder / name, "--ledger", folder / "l.db")
        assert status == 2
        assert "error" in told


def test_verdicts_of_both_worlds_are_kept(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, told = run(capsys, "arms", folder / "arms.json", "--ledger", folder / "l.db")
    assert status == 0
    assert [v["ending"] for v in told["files"][0]["verdicts"]] == ["baseline", "promoted"] * 2
    assert told["files"][0]["facts"]["flips"] == ["b"]
    assert rows(folder / "l.db")["foreign_verdict"] == 4


def test_two_imported_logs_of_one_ruler_compare_by_category(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("good.log", "better.log", "narrow.log")
    run(capsys, "dsv4-log", *(folder / n for n in names), "--ledger", folder / "l.db")
    status, told = run(capsys, "compare", "good.log", "better.log", "--ledger", folder / "l.db")
    assert status == 0
    assert told["is_a_tau"] is False
    assert {r["category"] for r in told["categories"]} >= {"control", "reasoning"}
    status, told = run(capsys, "compare", "good.log", "narrow.log", "--ledger", folder / "l.db")
    assert status == 2
    assert "width: 5 is not 6" in told["error"]
    status, told = run(capsys, "floors", "better.log", "--stock", "good.log", "--incumbent",
                       "good.log", "--ledger", folder / "l.db")
    assert (status, told["released"]) == (0, True)


def test_imported_numbers_never_compare_with_ours_and_the_fields_are_named(folder: Path) -> None:
    ledger = Ledger.open(folder / "l.db")
    planned.open_campaign(ledger, QUICK, start={}, box="box", now_utc=NOW)
    drive(ledger, [lever()], World({'{"threads":2}': -0.05}))
    with ledger.transaction() as writer:
        history.append(writer, reading.read(folder / "good.log"), NOW)
    with ledger.reading() as connection:
        view = views.load(connection)
        theirs = history.named(connection, "good.log").ruler
    ledger.close()
    assert theirs is not None
    ours = next(iter(view.rulers.values()))
    with pytest.raises(RulerMismatch) as refused:
        ruler.compare(ours, theirs)
    for field in ("protocol: 1 is not dsv4", "stops_at_eos: absent is not False", "metric: "):
        assert field in str(refused.value)


def test_history_reads_again_to_the_same_and_says_where_it_does_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger.open(folder / "l.db")
    planned.open_campaign(ledger, QUICK, start={}, box="box", now_utc=NOW)
    with ledger.transaction() as writer:
        for name in ("good.log", "cut.log", "guard.log"):
            history.append(writer, reading.read(folder / name), NOW)
        history.append(writer, reading.read_arms(folder / "arms.json"), NOW)
    with ledger.reading() as connection:
        assert history.differences(connection) == ()
    assert not [d for d in rebuild(ledger).differences if "good.log" in d]
    monkeypatch.setattr(reading.suite, "EOS_ID", 1003)
    with ledger.reading() as connection:
        assert history.differences(connection) == ("good.log now gives other numbers",)
    ledger.close()


def test_a_damaged_stored_file_is_named_and_never_an_exception(folder: Path) -> None:
    ledger = Ledger.open(folder / "l.db")
    with ledger.transaction() as writer:
        history.append(writer, reading.read(folder / "good.log"), NOW)
    raw = sqlite3.connect(folder / "l.db")
    raw.execute("DROP TRIGGER foreign_log_no_update")
    for damage, word in ((b"no zlib", "damaged"), (zlib.compress(b"x"), "does not match")):
        raw.execute("UPDATE foreign_log SET text_zlib = ?", (damage,))
        raw.commit()
        with ledger.reading() as connection:
            (said,) = history.differences(connection)
        assert "good.log" in said
        assert word in said
    raw.close()
    ledger.close()


def test_a_newer_reader_adds_a_reading_and_keeps_the_old_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger.open(folder / "l.db")
    found = reading.read(folder / "good.log")
    with ledger.transaction() as writer:
        assert history.append(writer, found, NOW) == "added"
    newer = reading.READER_VERSION + 1
    monkeypatch.setattr(history, "READER_VERSION", newer)
    with ledger.transaction() as writer:
        assert history.append(writer, found, NOW) == "read again"
    with ledger.reading() as connection:
        assert [i.reader for i in history.imported(connection)] == [newer]
    ledger.close()
    assert rows(folder / "l.db")["foreign_reading"] == 2


def test_a_table_that_was_refused_leaves_the_ledger_whole(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = (folder / "arms.json").read_bytes()
    (folder / "dos.json").write_bytes(table.replace(b", ", b",\r\n"))
    status, told = run(capsys, "arms", folder / "dos.json", "--ledger", folder / "l.db")
    assert (status, told["files"][0]["reasons"][0]["code"]) == (1, "line_ends")
    assert cli.main(["ledger", "verify", "--ledger", str(folder / "l.db")]) == 0


def test_a_ledger_of_imports_alone_is_read_again_by_rebuild(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = folder / "l.db"
    words = ["ledger", "rebuild", "--ledger", str(ledger)]
    run(capsys, "dsv4-log", folder / "good.log", folder / "cut.log", "--ledger", ledger)
    assert cli.main(words) == 0
    assert "2 imported files\nthe same readings" in capsys.readouterr().out
    assert cli.main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["same"], told["imported"], told["best"]) == (True, 2, None)
    Ledger.open(folder / "empty.db").close()
    assert cli.main([*words[:-1], str(folder / "empty.db")]) == 1


def test_one_file_that_is_not_there_keeps_all_of_them_out(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, told = run(capsys, "dsv4-log", folder / "good.log", folder / "typo.log", "--ledger",
                       folder / "l.db")  # fmt: skip
    assert status == 2
    assert "typo.log cannot be read" in told["error"]
    assert not (folder / "l.db").exists()


@pytest.mark.parametrize(
    ("bend", "said"),
    [
        (gzip.compress, "it is compressed (gzip): unpack it first"),
        (lambda raw: raw.decode().encode("utf-16"), "it is UTF-16"),
        (lambda raw: b"\xef\xbb\xbf" + raw, "it begins with a byte order mark"),
        (lambda raw: b"SQLite format 3\0" + raw, "it is a ledger or another database"),
    ],
)
def test_a_file_of_another_kind_is_told_by_its_kind(
    bend: Callable[[bytes], bytes], said: str, folder: Path
) -> None:
    for name, read in (("good.log", reading.read), ("arms.json", reading.read_arms)):
        (folder / "bent").write_bytes(bend((folder / name).read_bytes()))
        found = read(folder / "bent")
        assert not found.recognised
        assert found.reasons[0].detail.startswith(said)
