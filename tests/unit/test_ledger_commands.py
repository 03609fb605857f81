"""`flywheel ledger` verify, rebuild, export, import, backup: what they find, write and refuse."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from records import NOW, World, drive, lever

from flywheel import best
from flywheel.cli.app import main
from flywheel.errors import LedgerError, UsageError
from flywheel.ledger import backup, halts, models, portable, views
from flywheel.ledger.store import Ledger
from flywheel.ledger.verify import Verified, verify
from flywheel.loop import planned
from flywheel.statistics.campaign import QUICK


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with a promotion, a void block and a halt, for each test to copy."""
    opened = Ledger.open(tmp_path_factory.mktemp("made") / "ledger.db")
    planned.open_campaign(opened, QUICK, start={}, box="box", now_utc=NOW)
    fails = {3: ("dead", "it died")}
    world = World({'{"threads":2}': -0.05}, fails=lambda s: fails.get(s.number))
    drive(opened, [lever()], world)
    halts.halt(opened, "test", "a fault", None, NOW)
    opened.close()
    return opened.path


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copy(made, tmp_path / "ledger.db"))


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    """It, open."""
    opened = Ledger.read(path)
    yield opened
    opened.close()


def break_rules(path: Path, *statements: str) -> None:
    """Change history as a person with an SQLite shell could, and put the triggers back."""
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("PRAGMA synchronous = OFF")
        raw.execute("BEGIN")
        triggers = raw.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        kept = triggers.fetchall()
        for name, _ in kept:
            raw.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            assert raw.execute(statement).rowcount > 0, statement
        for _, sql in kept:
            raw.execute(sql)
        raw.execute("COMMIT")


def problems(path: Path) -> tuple[str, ...]:
    opened = Ledger.read(path)
    try:
        return verify(opened).problems
    finally:
        opened.close()


OK = "(SELECT run_id FROM run_end WHERE outcome = 'ok' LIMIT 1)"
TAMPERED = {
    "a number": ("UPDATE measurement SET numerator = numerator + 1 WHERE id = 7", "measurements"),
    "a unit": ("UPDATE measurement SET unit = 's' WHERE id = 7", "measurements"),
    "a number lost": ("DELETE FROM measurement WHERE id = 7", "measurements"),
    "an arm": ("UPDATE arm SET requested = '{\"threads\":9}' WHERE name = 'B'", "arms"),
    "a log lost": (f"DELETE FROM log WHERE run_id = {OK}", "its log is not there"),
    "a log's hash": (f"UPDATE log SET sha256 = 'x' WHERE run_id = {OK}", "its hash"),
    "a log's bytes": (f"UPDATE log SET text_zlib = x'00' WHERE run_id = {OK}", "damaged"),
    "a nonce": (
        "UPDATE run SET manifest = json_set(manifest, '$.nonce', "
        f"'00000000000000000000000000000000') WHERE id = {OK}",
        "its log now reads",
    ),
    "a manifest": (f"UPDATE run SET manifest = '{{}}' WHERE id = {OK}", "manifest is incomplete"),
    "another's manifest": (
        f"UPDATE run SET manifest = (SELECT manifest FROM run WHERE id != {OK}) WHERE id = {OK}",
        "has the manifest of",
    ),
    "a ruler": ("UPDATE ruler SET fields = json_set(fields, '$.cores', 99)", "ruler"),
    "a lever": (
        "UPDATE lever SET change = '{\"threads\":3}' WHERE change != '{}'", "does not change"
    ),
    "a noted hash": (
        "UPDATE run_end SET evidence = '{\"exit\":{\"log_sha256\":\"x\"}}' "
        f"WHERE run_id = {OK}",
        "not the one that its supervisor saw",
    ),
}  # fmt: skip


def test_a_whole_ledger_is_verified_run_by_run(ledger: Ledger) -> None:
    told: list[tuple[int, int]] = []
    found = verify(ledger, progress=lambda done, total: told.append((done, total)))
    with ledger.reading() as connection:
        count = {
            table.name: connection.exec_driver_sql(f"SELECT count(*) FROM {table.name}").scalar()
            for table in (models.run, models.log, models.measurement)
        }
    assert found == Verified(count["run"], count["log"], count["measurement"], ())
    assert told == [(n, found.runs) for n in range(1, found.runs + 1)]


@pytest.mark.parametrize("what", TAMPERED)
def test_what_was_tampered_with_is_found(path: Path, what: str) -> None:
    statement, said = TAMPERED[what]
    break_rules(path, statement)
    found = problems(path)
    assert found, "nothing was found"
    assert any(said in line for line in found), found


def test_rules_that_were_dropped_are_told_first(path: Path) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("DROP TRIGGER log_no_delete")
    assert problems(path) == (
        "the trigger log_no_delete is missing; nothing guards what it guarded",
    )


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["ledger", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_verify_answers_by_its_exit_code(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = answer(capsys, "verify", "--ledger", str(path))
    assert (code, told["whole"], told["problems"]) == (0, True, [])
    break_rules(path, TAMPERED["a number"][0])
    code, told = answer(capsys, "verify", "--ledger", str(path))
    assert (code, told["whole"]) == (1, False)
    assert main(["ledger", "verify", "--ledger", str(path)]) == 1
    assert "is not whole" in " ".join(capsys.readouterr().out.split())


def test_an_export_comes_back_as_the_same_ledger(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other, back = tmp_path / "one.jsonl", tmp_path / "other.jsonl", tmp_path / "back.db"
    code, told = answer(capsys, "export", str(one), "--ledger", str(path))
    assert code == 0
    code, again = answer(capsys, "import", str(one), "--ledger", str(back))
    assert code == 0
    assert (again["rows"], again["sha256"]) == (told["rows"], told["sha256"])
    assert answer(capsys, "export", str(other), "--ledger", str(back))[0] == 0
    assert one.read_bytes() == other.read_bytes()
    configs = []
    for file in (path, back):
        opened = Ledger.read(file)
        with opened.reading() as connection:
            configs.append(best.fold(views.load(connection)))
        assert verify(opened).whole
        opened.close()
    assert configs[0] == configs[1]
    assert configs[0].config == {"threads": 2}


def test_an_import_into_an_empty_ledger_fills_it_and_into_another_is_refused(
    path: Path, tmp_path: Path
) -> None:
    file, empty = tmp_path / "one.jsonl", tmp_path / "empty.db"
    opened = Ledger.read(path)
    made = portable.export(opened, file)
    opened.close()
    Ledger.open(empty).close()
    assert portable.import_(file, empty).sha256 == made.sha256
    before = empty.read_bytes()
    with pytest.raises(UsageError, match="has rows already"):
        portable.import_(file, empty)
    assert empty.read_bytes() == before


def broken_exports(text: str) -> dict[str, tuple[str, str]]:
    lines = text.splitlines(keepends=True)
    swapped = lines.copy()
    swapped[3], swapped[4] = swapped[4], swapped[3]
    return {
        "cut": ("".join(lines[:-1]), "breaks off"),
        "cut in a line": (text[: len(text) // 2], "not JSON"),
        "a row lost": ("".join(lines[:3] + lines[4:]), "its own hash"),
        "rows swapped": ("".join(swapped), "its own hash"),
        "a value changed": (text.replace('"threads2"', '"threads3"', 1), "its own hash"),
        "something after the end": (text + lines[1], "follows its last line"),
        "another file": ("[1]\n", "no exported ledger"),
        "a row too short": (lines[0] + lines[1] + "[1]\n" + lines[-1], "does not fit"),
        "no header": ('{"format":"x"}\n', "no exported ledger"),
        "a newer schema": (text.replace(f'"schema":{models.SCHEMA_VERSION}', '"schema":99', 1),
                           "schema version 99"),
        "an unknown table": (text.replace('"table":"arm"', '"table":"leg"', 1), "none of ours"),
        "other columns": (text.replace('"columns":["run_id"', '"columns":["run"', 1),
                          "other columns"),
        "nothing": ("", "breaks off"),
        "a number": ("7\n", "neither a row nor a heading"),
    }  # fmt: skip


def test_an_export_that_is_not_whole_makes_no_ledger(path: Path, tmp_path: Path) -> None:
    file, source = tmp_path / "one.jsonl", tmp_path / "broken.jsonl"
    opened = Ledger.read(path)
    portable.export(opened, file)
    opened.close()
    for what, (text, said) in broken_exports(file.read_text()).items():
        source.write_text(text)
        with pytest.raises(LedgerError, match=said):
            portable.import_(source, tmp_path / "new.db")
        left = sorted(p.name for p in tmp_path.iterdir())
        assert left == ["broken.jsonl", "ledger.db", "one.jsonl"], what


def test_rows_that_break_a_rule_are_not_imported(path: Path, tmp_path: Path) -> None:
    break_rules(path, "UPDATE run_end SET outcome = 'void' WHERE outcome = 'ok'")
    file = tmp_path / "one.jsonl"
    opened = Ledger.read(path)
    portable.export(opened, file)
    opened.close()
    with pytest.raises(LedgerError, match=r"no estimate|FOREIGN KEY"):
        portable.import_(file, tmp_path / "new.db")
    assert not (tmp_path / "new.db").exists()


def test_an_export_never_overwrites(ledger: Ledger, tmp_path: Path) -> None:
    file = tmp_path / "one.jsonl"
    file.write_text("precious")
    with pytest.raises(UsageError, match="is there already"):
        portable.export(ledger, file)
    assert file.read_text() == "precious"
    with pytest.raises(LedgerError, match="cannot be written"):
        portable.export(ledger, tmp_path / "no" / "one.jsonl")


def test_backup_copies_once(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = answer(capsys, "backup", "--ledger", str(path))
    assert (code, told["made"]) == (0, True)
    assert answer(capsys, "backup", "--ledger", str(path))[1] == {**told, "made": False}
    assert [str(p) for p in backup.copies(path)] == [told["path"]]


def test_what_lost_its_rules_is_neither_copied_nor_written_to(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("DROP TRIGGER campaign_no_update")
    for words in (("ledger", "backup"), ("resume", "--why", "x"), ("readjudicate",)):
        assert main([*words, "--ledger", str(path)]) == 1
        assert "campaign_no_update is missing" in capsys.readouterr().err
    assert backup.copies(path) == ()


def test_an_import_of_no_file_is_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for source in (tmp_path / "missing", tmp_path):
        assert main(["ledger", "import", str(source), "--ledger", str(tmp_path / "l.db")]) == 2
        assert "there is no file" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_reason_is_kept_as_one_line_of_text(path: Path) -> None:
    said = "it was\x1b[31m red,\n  and two lines"
    assert main(["resume", "--why", said, "--ledger", str(path)]) == 0
    with closing(sqlite3.connect(path)) as raw:
        why = raw.execute("SELECT why FROM resume").fetchone()[0]
    assert why.endswith(": it was [31m red, and two lines")


def test_rebuild_wants_both_ends_or_none(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = answer(capsys, "rebuild", "--ledger", str(path))
    assert (code, told["same"]) == (0, True)
    assert main(["ledger", "rebuild", "--from", str(tmp_path)]) == 2
    assert "go together" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["verify", "rebuild", "export", "import", "backup"])
def test_every_command_shows_an_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ledger", command, "--help"]) == 0
    assert f"Example: flywheel ledger {command}" in capsys.readouterr().out


def test_a_command_on_no_ledger_makes_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = str(tmp_path / "none.db")
    for command in (["verify"], ["rebuild"], ["export", str(tmp_path / "x")], ["backup"]):
        assert main(["ledger", *command, "--ledger", nowhere]) == 2
        assert "there is no ledger" in capsys.readouterr().err
    assert main(["ledger", "import", str(tmp_path / "none"), "--ledger", nowhere]) == 2
    assert list(tmp_path.iterdir()) == []
