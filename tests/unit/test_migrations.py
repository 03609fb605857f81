"""A ledger of an older schema is read as it is, and brought up without losing anything."""

from __future__ import annotations

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from records import NOW

from flywheel import best
from flywheel.errors import LedgerError
from flywheel.ledger import backup, halts, integrity, migrations, models, views
from flywheel.ledger.rebuild import rebuild
from flywheel.ledger.store import Ledger, check_integrity
from flywheel.loop import planned
from flywheel.statistics.campaign import QUICK

OLD = Path(__file__).parent / "fixtures" / "ledger-v1.db.gz"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A ledger as schema version 1 left it: a promotion, a void block, a canary."""
    path = tmp_path / "ledger.db"
    path.write_bytes(gzip.decompress(OLD.read_bytes()))
    return path


def version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as raw:
        return int(raw.execute("PRAGMA user_version").fetchone()[0])


def rows(path: Path) -> dict[str, list[tuple[object, ...]]]:
    with closing(sqlite3.connect(path)) as raw:
        names = [r[0] for r in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {n: raw.execute(f"SELECT * FROM {n} ORDER BY 1").fetchall() for n in names}


def test_there_is_a_step_to_every_version() -> None:
    assert sorted(migrations.STEPS) == list(range(2, models.SCHEMA_VERSION + 1))
    assert all(path.is_file() for path in migrations.STEPS.values())


def test_an_old_ledger_ends_with_the_schema_of_a_new_one(old: Path) -> None:
    ledger = Ledger.open(old)
    with ledger.reading() as connection:
        assert integrity.broken_rules(connection) == ()
    check_integrity(ledger)
    ledger.close()
    assert version(old) == models.SCHEMA_VERSION


def test_an_old_ledger_keeps_every_row(old: Path) -> None:
    before = rows(old)
    Ledger.open(old).close()
    after = rows(old)
    assert {name: after[name] for name in before} == before


def test_an_old_ledger_is_copied_before_it_is_changed(old: Path) -> None:
    before = rows(old)
    Ledger.open(old).close()
    kept = backup.folder(old) / "schema-1.db"
    assert version(kept) == 1
    assert rows(kept) == before
    assert backup.copies(old) == ()


def test_an_old_ledger_is_read_without_being_changed(old: Path) -> None:
    before = old.read_bytes()
    ledger = Ledger.read(old)
    with ledger.reading() as connection:
        assert best.fold(views.load(connection)).config == {"threads": 2}
        assert halts.standing(connection) == ()
    assert rebuild(ledger).same
    with pytest.raises(LedgerError, match="opened to be read"):
        planned.close_campaign(ledger, 1, "again", now_utc=NOW)
    ledger.close()
    assert old.read_bytes() == before
    assert sorted(p.name for p in old.parent.iterdir()) == ["ledger.db"]


def test_an_old_ledger_comes_to_the_same_best_and_goes_on(old: Path) -> None:
    ledger = Ledger.open(old)
    found = rebuild(ledger)
    assert found.same
    assert found.best.config == {"threads": 2}
    planned.open_campaign(ledger, QUICK, start=dict(found.best.config), box="box", now_utc=NOW)
    halts.halt(ledger, "test", "a fault", None, NOW)
    ledger.close()


def test_a_migration_that_fails_leaves_the_old_ledger(
    old: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "broken.sql"
    script.write_text("CREATE TABLE extra (id INTEGER);\n\nCREATE TABLE run (id TEXT);\n")
    monkeypatch.setattr(migrations, "STEPS", {2: script})
    before = rows(old)
    with pytest.raises(LedgerError, match="already exists"):
        Ledger.open(old)
    assert version(old) == 1
    assert rows(old) == before


def test_a_ledger_that_cannot_be_copied_is_not_migrated(old: Path) -> None:
    backup.folder(old).write_text("a file where the folder of copies belongs")
    with pytest.raises(LedgerError, match="cannot be copied"):
        Ledger.open(old)
    assert version(old) == 1


