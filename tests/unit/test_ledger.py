"""The ledger is append-only, refuses numbers of dead runs, and survives bad files."""

from __future__ import annotations

import math
import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from foreign_logs import import_history
from records import NOW, World, a_head, a_patch, an_attempt, drive, lever

from flywheel.errors import LedgerError, LedgerVersionError
from flywheel.ledger import halts, models, phases, steering, takeovers, views
from flywheel.ledger.schema import APPLICATION_ID
from flywheel.ledger.store import Ledger, check_integrity, log_text
from flywheel.loop import planned
from flywheel.statistics.campaign import QUICK


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """An empty ledger."""
    opened = Ledger.open(tmp_path / "ledger.db")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger in which every table has a row, for each test to copy."""
    ledger = Ledger.open(tmp_path_factory.mktemp("made") / "ledger.db")
    planned.open_campaign(ledger, QUICK, start={}, box="box", now_utc=NOW)
    effects = {'{"threads":2}': -0.05}
    world = World(effects, fails=lambda s: ("dead", "x") if s.number == 3 else None)
    family = [lever(f"tile{n}", {"row_tile": n}) for n in (1, 2)]
    drive(ledger, [lever(), *family], world)
    # Cold levers that lose, enough of them for two screens in a row.
    cold = [lever(f"x{n}", {f"x{n}": "on"}, hot=False) for n in range(4)]
    drive(ledger, cold, World({f'{{"x{n}":"on"}}': 0.2 for n in range(4)}))
    planned.close_campaign(ledger, 1, "done", now_utc=NOW)
    halts.halt(ledger, "test", "a fault", None, NOW)
    halts.resume(ledger, "looked at it", NOW)
    takeovers.record(ledger, path="d", device="cpu", previous={}, proof="gone", now_utc=NOW)
    steering.steer(ledger, lever(), "deferred", "later", now_utc=NOW)
    phases.enter(ledger, "exhaust", "dry", (), now_utc=NOW)
    phases.profiled(ledger, {}, {}, "head", [(lever("new", {"n": 1}), "head")], now_utc=NOW)
    an_attempt(ledger)
    import_history(ledger, NOW)
    a_head(ledger)
    a_patch(ledger)
    ledger.close()
    return ledger.path


@pytest.fixture
def filled(made: Path, tmp_path: Path) -> Iterator[Ledger]:
    """A copy of it."""
    opened = Ledger.open(shutil.copy(made, tmp_path / "ledger.db"))
    yield opened
    opened.close()


def test_every_history_table_refuses_update_and_delete(filled: Ledger) -> None:
    raw = sqlite3.connect(filled.path)
    for table in models.metadata.tables.values():
        assert raw.execute(f"SELECT count(*) FROM {table.name}").fetchone()[0], table.name
        column = next(iter(table.columns)).name
        for verb in (f"UPDATE {table.name} SET {column} = {column}", f"DELETE FROM {table.name}"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                raw.execute(verb)
    raw.close()


def test_every_table_is_strict_and_in_rollback_journal_mode(filled: Ledger) -> None:
    raw = sqlite3.connect(filled.path)
    query = "SELECT name, strict FROM pragma_table_list WHERE schema='main'"
    strict = raw.execute(query).fetchall()
    assert all(flag for name, flag in strict if not name.startswith("sqlite_"))
    assert raw.execute("PRAGMA journal_mode").fetchone()[0] == "delete"
    raw.close()
    check_integrity(filled)


def test_a_dead_run_cannot_own_a_number(filled: Ledger) -> None:
    with filled.reading() as connection:
        runs = [r for b in views.load(connection).blocks() for r in b.runs]
        dead = next(r for r in runs if r.outcome == "void")
        assert views.measurements(connection, dead.id) == ()
    common = {
        "run_id": dead.id, "arm": "A", "prompt": "p", "category": "c", "repeat": 0,
        "metric": "time", "numerator": 1, "denominator": 1, "unit": "ns", "counted": True,
        "line": 1,
    }
    for outcome in ("ok", "void"):
        with pytest.raises(LedgerError, match="refused"), filled.transaction() as writer:
            writer.append(models.measurement, outcome=outcome, **common)


def test_numbers_that_are_none_are_refused(filled: Ledger) -> None:
    with filled.reading() as connection:
        runs = [r for b in views.load(connection).blocks() for r in b.runs]
        good = next(r for r in runs if r.outcome == "ok")
    common = {
        "run_id": good.id, "outcome": "ok", "arm": "A", "prompt": "p", "category": "c",
        "repeat": 9, "metric": "time", "unit": "ns", "counted": True, "line": 1,
    }
    for numerator, denominator in ((1, 0), (-1, 1), (1.5, 1), ("x", 1), (None, 1)):
        with pytest.raises(LedgerError), filled.transaction() as writer:
            writer.append(
                models.measurement, numerator=numerator, denominator=denominator, **common
            )
    for bad in (math.nan, math.inf, None):
        with pytest.raises(LedgerError), filled.transaction() as writer:
            writer.append(
                models.lever, identity="i", name="n", kind="config", change={}, claim="c",
                falsify="f", predicted_gain=bad, hot=True, family="f", is_null=False,
                metric="tau", created_utc=NOW,
            )


def test_a_failed_transaction_leaves_nothing(ledger: Ledger) -> None:
    def broken() -> None:
        with ledger.transaction() as writer:
            writer.append(
                models.campaign_end, campaign_id=1, reason="no such campaign", created_utc=NOW
            )

    with pytest.raises(LedgerError, match="FOREIGN KEY"):
        broken()

    def interrupted() -> None:
        with ledger.transaction() as writer:
            writer.append(models.ruler, identity="i", name="n", fields={}, created_utc=NOW)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interrupted()
    with ledger.reading() as connection:
        assert views.load(connection) == views.View()


def test_reads_come_back_as_frozen_objects(filled: Ledger) -> None:
    with filled.reading() as connection:
        view = views.load(connection)
    with pytest.raises(AttributeError):
        view.campaigns = ()  # type: ignore[misc]
    assert view.campaign is not None
    assert view.campaign.ended == "done"
    assert view.campaign.settings == QUICK
    assert view.block("b00001").number == 1
    for call in (view.variant, view.block):
        with pytest.raises(KeyError):
            call("nope")


def test_every_row_names_the_row_that_it_came_from(filled: Ledger) -> None:
    with filled.reading() as connection:
        view = views.load(connection)
        for variant in view.variants:
            for block in variant.blocks:
                assert block.variant_id == variant.id
                for run in block.runs:
                    assert run.block_id == block.id
                    assert views.manifest(connection, run.id)["block_id"] == block.id
        with pytest.raises(KeyError):
            views.manifest(connection, "nope")
        assert log_text(connection, "nope") is None
    linked = sqlite3.connect(filled.path).execute(
        "SELECT count(*) FROM decision_block JOIN decision ON id = decision_id WHERE n > 0"
    ).fetchone()[0]
    assert linked == sum(d.n for d in view.decisions)


def test_stored_logs_are_whole(filled: Ledger) -> None:
    with filled.reading() as connection:
        view = views.load(connection)
        run = next(r for b in view.blocks() for r in b.runs if r.outcome == "ok")
        text = log_text(connection, run.id)
    assert text is not None
    assert text.startswith("an engine, in prose\n@")
    raw = sqlite3.connect(filled.path)
    raw.execute("DROP TRIGGER log_no_update")
    raw.execute("UPDATE log SET text_zlib = zeroblob(9) WHERE run_id = ?", (run.id,))
    raw.commit()
    with filled.reading() as connection, pytest.raises(LedgerError, match="damaged"):
        log_text(connection, run.id)
    other = raw.execute("SELECT text_zlib FROM log WHERE run_id != ?", (run.id,)).fetchone()[0]
    raw.execute("UPDATE log SET text_zlib = ? WHERE run_id = ?", (other, run.id))
    raw.commit()
    raw.close()
    with filled.reading() as connection, pytest.raises(LedgerError, match="its hash"):
        log_text(connection, run.id)


def test_a_newer_ledger_is_refused_with_a_clear_sentence(ledger: Ledger) -> None:
    raw = sqlite3.connect(ledger.path)
    raw.execute(f"PRAGMA user_version = {models.SCHEMA_VERSION + 1}")
    raw.close()
    with pytest.raises(LedgerVersionError, match="use the newer flywheel"):
        Ledger.open(ledger.path)


def test_other_files_are_no_ledger(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.db"
    raw = sqlite3.connect(foreign)
    raw.execute("CREATE TABLE t (x)")
    raw.close()
    with pytest.raises(LedgerError, match="not a ledger of flywheel"):
        Ledger.open(foreign)
    junk = tmp_path / "junk.db"
    junk.write_bytes(b"not a database at all, but long enough to be looked at" * 30)
    with pytest.raises(LedgerError, match="cannot be read"):
        Ledger.open(junk)
    with pytest.raises(LedgerError, match="no ledger at"):
        Ledger.open(tmp_path / "none.db", create=False)
    with pytest.raises(LedgerError, match="does not exist"):
        Ledger.open(tmp_path / "no" / "ledger.db")


def test_a_damaged_reference_is_found(filled: Ledger) -> None:
    raw = sqlite3.connect(filled.path)
    raw.execute("DROP TRIGGER run_no_delete")
    raw.execute("DELETE FROM run WHERE id IN (SELECT id FROM run LIMIT 1)")
    raw.commit()
    raw.close()
    with pytest.raises(LedgerError, match="damaged"):
        check_integrity(filled)


def test_a_ledger_opens_once_made_and_keeps_its_mark(ledger: Ledger) -> None:
    again = Ledger.open(ledger.path, create=False)
    with again.reading() as connection:
        assert connection.exec_driver_sql("PRAGMA application_id").scalar() == APPLICATION_ID
    again.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_read_only_ledger_can_be_reported_on(filled: Ledger) -> None:
    filled.path.chmod(0o444)
    with Ledger.read(filled.path).reading() as connection:
        assert views.load(connection).campaign is not None


def test_two_writers_queue_and_a_reader_sees_whole_transactions(ledger: Ledger) -> None:
    failures: list[BaseException] = []

    def write(name: str) -> None:
        try:
            mine = Ledger.open(ledger.path)
            for i in range(15):
                with mine.transaction() as writer:
                    for half in "ab":
                        writer.append(
                            models.ruler, identity=f"{name}{i}{half}", name=name, fields={},
                            created_utc=NOW,
                        )
            mine.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in ("x", "y")]
    for thread in threads:
        thread.start()
    while any(t.is_alive() for t in threads):
        with ledger.reading() as connection:
            count = connection.exec_driver_sql("SELECT count(*) FROM ruler").scalar_one()
        assert count % 2 == 0
    for thread in threads:
        thread.join()
    assert failures == []
    with ledger.reading() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM ruler").scalar_one() == 60
