"""What the database itself refuses, whoever writes: rewritten history and numbers of dead runs."""

from __future__ import annotations

import math
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from foreign_logs import import_history
from records import (
    NOW,
    World,
    a_head,
    a_patch,
    an_attempt,
    drive,
    lever,
    manifest_of,
    record,
    text_of,
)

from flywheel.errors import LedgerError
from flywheel.ledger import evidence, halts, integrity, models, phases, steering, takeovers, views
from flywheel.ledger.store import Ledger
from flywheel.loop import judge, planned
from flywheel.run.parse import parse
from flywheel.statistics.campaign import QUICK


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with a promotion, a void block and screens, for each test to copy."""
    opened = Ledger.open(tmp_path_factory.mktemp("made") / "ledger.db")
    planned.open_campaign(opened, QUICK, start={}, box="box", now_utc=NOW)
    fails = {3: ("dead", "it died")}
    world = World({'{"threads":2}': -0.05}, fails=lambda s: fails.get(s.number))
    family = [lever(f"tile{n}", {"row_tile": n}) for n in (1, 2)]
    drive(opened, [lever(), *family], world)
    # Of four cold levers without effect two pairs are screened, the second after the first.
    cold = [lever(f"x{n}", {f"x{n}": "on"}, hot=False) for n in range(4)]
    drive(opened, cold, World({f'{{"x{n}":"on"}}': 0.2 for n in range(4)}))
    opened.close()
    return opened.path


@pytest.fixture
def ledger(made: Path, tmp_path: Path) -> Iterator[Ledger]:
    """A copy of it."""
    opened = Ledger.open(shutil.copy(made, tmp_path / "ledger.db"))
    yield opened
    opened.close()


def refused(ledger: Ledger, sql: str, match: str) -> None:
    with (
        closing(sqlite3.connect(ledger.path)) as raw,
        pytest.raises(sqlite3.IntegrityError, match=match),
    ):
        raw.execute(sql)


@pytest.mark.parametrize("table", sorted(models.metadata.tables))
def test_no_row_is_replaced(ledger: Ledger, table: str) -> None:
    halts.halt(ledger, "test", "a fault", None, NOW)
    halts.resume(ledger, "looked at it", NOW)
    takeovers.record(ledger, path="d", device="cpu", previous={}, proof="gone", now_utc=NOW)
    planned.close_campaign(ledger, 1, "done", now_utc=NOW)
    steering.steer(ledger, lever(), "deferred", "later", now_utc=NOW)
    phases.enter(ledger, "exhaust", "dry", (), now_utc=NOW)
    phases.profiled(ledger, {}, {}, "head", [(lever("new", {"n": 1}), "head")], now_utc=NOW)
    a_head(ledger)
    an_attempt(ledger)
    a_patch(ledger)
    import_history(ledger, NOW)
    again = f"INSERT OR REPLACE INTO {table} SELECT * FROM {table} LIMIT 1"
    refused(ledger, again, "append-only")


def test_a_measurement_is_not_replaced_under_another_key(ledger: Ledger) -> None:
    names = [c.name for c in models.measurement.columns if c.name not in ("id", "numerator")]
    columns = ", ".join(names)
    refused(
        ledger,
        f"INSERT OR REPLACE INTO measurement (numerator, {columns}) "
        f"SELECT 1, {columns} FROM measurement LIMIT 1",
        "append-only",
    )


def test_a_void_block_gets_no_estimate_and_a_measured_one_is_not_voided(ledger: Ledger) -> None:
    columns = ", ".join(c.name for c in models.block.columns if c.name != "block_id")
    refused(
        ledger,
        f"INSERT INTO block (block_id, {columns}) SELECT (SELECT block_id FROM block_void), "
        f"{columns} FROM block LIMIT 1",
        "no estimate",
    )
    refused(
        ledger,
        "INSERT INTO block_void SELECT block_id, 'x', 'x', 'x' FROM block LIMIT 1",
        "cannot become void",
    )


def test_a_run_that_left_badly_is_not_ok(ledger: Ledger) -> None:
    made = record("r9")
    step_block = _plan_one(ledger, made.run_id)
    end = judge.RunEnd("ok", "", "", NOW, NOW, 1, exit_status=139)
    text = text_of(made)
    read = parse(text, manifest_of(made, block_id=step_block))
    with pytest.raises(LedgerError, match="another status than 0"):
        judge.enter(ledger, made.run_id, end, text, read, now_utc=NOW)  # type: ignore[arg-type]


def _plan_one(ledger: Ledger, run_id: str) -> str:
    with ledger.transaction() as writer:
        variant = views.load(writer.connection).variants[0].id
        writer.append(
            models.block_plan, serial=99, id="b00099", variant_id=variant, number=99, hot=True,
            pattern="ABBA", seed=1, why="test", created_utc=NOW,
        )
        writer.append(
            models.run, id=run_id, block_id="b00099", slot=0, manifest={}, created_utc=NOW
        )
    return "b00099"


def test_nothing_is_promoted_without_a_number(ledger: Ledger) -> None:
    columns = [c.name for c in models.decision.columns if c.name not in ("id", "mean")]
    names = ", ".join(columns)
    refused(
        ledger,
        f"INSERT INTO decision ({names}) SELECT {names} FROM decision WHERE ending = 'promoted'",
        "without a measured gain",
    )


@pytest.mark.parametrize("text", ["{", "NaN", '{"x": Infinity}', '{"x": [1, 1e999]}'])
def test_documents_hold_json_with_finite_numbers(ledger: Ledger, text: str) -> None:
    entry = f"INSERT INTO ruler VALUES (77, 'i', 'n', '{text}', 'now')"
    refused(ledger, entry, "must be JSON|malformed")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2**63])
def test_a_number_that_is_none_is_refused_even_where_it_may_be_left_out(
    ledger: Ledger, bad: Any
) -> None:
    with pytest.raises(LedgerError, match="refused"), ledger.transaction() as writer:
        writer.append(
            models.lever, identity="i", name="n", kind="config", change={}, claim="c",
            falsify="f", predicted_gain=0.1, ceiling=bad, hot=True, family="f", is_null=False,
            metric="tau", created_utc=NOW,
        )
    if isinstance(bad, float):
        with pytest.raises(LedgerError, match="refused"), ledger.transaction() as writer:
            writer.append(models.ruler, identity="i", name="n", fields={"x": bad}, created_utc=NOW)


def test_a_dropped_trigger_is_missed(ledger: Ledger) -> None:
    with closing(sqlite3.connect(ledger.path)) as raw:
        raw.execute("DROP TRIGGER decision_no_update")
        raw.execute("DROP TRIGGER measurement_no_replace")
        raw.execute(
            "CREATE TRIGGER measurement_no_replace BEFORE INSERT ON measurement "
            "WHEN 0 BEGIN SELECT RAISE(ABORT, 'never'); END"
        )
        raw.execute("CREATE TRIGGER extra AFTER INSERT ON run BEGIN SELECT 1; END")
    with ledger.reading() as connection:
        found = integrity.problems(connection, quick=True)
    assert found == (
        "the trigger decision_no_update is missing; nothing guards what it guarded",
        "the trigger extra is none of ours",
        "the trigger measurement_no_replace was altered",
    )


def test_a_halt_stands_until_it_is_lifted_with_a_reason(ledger: Ledger) -> None:
    first = halts.halt(ledger, "checkpoint_changed", "the checkpoint changed", None, NOW)
    assert halts.halt(ledger, "checkpoint_changed", "the checkpoint changed", None, NOW) == first
    with ledger.reading() as connection:
        run = views.load(connection).blocks()[0].runs[0].id
    halts.halt(ledger, "guard_killed_incumbent", "the guard killed it", run, NOW)
    with ledger.reading() as connection:
        assert [h.run_id for h in halts.standing(connection)] == [None, run]
    with pytest.raises(LedgerError, match="with a reason"):
        halts.resume(ledger, "  ", NOW)
    assert len(halts.resume(ledger, "restored the checkpoint", NOW)) == 2
    assert halts.resume(ledger, "again", NOW) == ()
    with ledger.reading() as connection:
        assert halts.standing(connection) == ()
    assert halts.halt(ledger, "checkpoint_changed", "the checkpoint changed", None, NOW) != first


def test_a_takeover_keeps_whom_the_lease_was_taken_from(ledger: Ledger) -> None:
    holder = {"pid": 7, "boot_id": "b"}
    takeovers.record(
        ledger, path="/l", device="cpu", previous=holder, proof="no such pid", now_utc=NOW
    )
    with ledger.reading() as connection:
        (row,) = takeovers.takeovers(connection)
    assert (row.previous, row.proof, row.device) == (holder, "no such pid", "cpu")


def test_memory_figures_come_from_good_runs_alone(ledger: Ledger) -> None:
    with ledger.reading() as connection:
        assert evidence.peak_bytes(connection) is None
        assert evidence.low_water_bytes(connection) is None
        serial = max(b.serial for b in views.load(connection).blocks())
    seen = ((5, 100, "ok"), (9, 70, "ok"), (50, 1, "void"))
    with ledger.transaction() as writer:
        variant = views.load(writer.connection).variants[0].id
        for place, (peak, low, outcome) in enumerate(seen, 1):
            number = serial + place
            block, run = f"b{number:05d}", f"m{number}"
            writer.append(
                models.block_plan, serial=number, id=block, variant_id=variant,
                number=100 + place, hot=True, pattern="ABBA", seed=1, why="test", created_utc=NOW,
            )
            writer.append(
                models.run, id=run, block_id=block, slot=0, created_utc=NOW,
                manifest={"config": {"checkpoint": f"/model{place}"}},
            )
            told = {"exit": {"peak_rss_bytes": peak, "guard": {"low_water_bytes": low}}}
            writer.append(
                models.run_end, run_id=run, outcome=outcome, code="", detail="", exit_status=0,
                started_utc=NOW, ended_utc=NOW, wall_ns=1, evidence=told,
            )
    with ledger.reading() as connection:
        assert evidence.peak_bytes(connection) == 9
        assert evidence.low_water_bytes(connection) == 70
        assert evidence.peak_bytes(connection, "ab" * 32) is None
        assert evidence.peak_bytes(connection, "unknown") is None
        peaks = [evidence.peak_bytes_of(connection, f"/model{place}") for place in (1, 2, 3, 4)]
        assert peaks == [5, 9, None, None]


def test_only_a_good_run_opens_a_screen(ledger: Ledger) -> None:
    dead = "SELECT run_id FROM run_end WHERE outcome <> 'ok' LIMIT 1"
    planned = (
        "SELECT block_id FROM screen_plan EXCEPT SELECT block_id FROM screen_opening LIMIT 1"
    )
    sql = f"INSERT INTO screen_opening VALUES (({planned}), ({dead}), '{NOW}')"
    refused(ledger, sql, "opens no screen")


def test_a_screen_begins_with_one_load_and_not_with_two(ledger: Ledger) -> None:
    sql = "INSERT INTO run SELECT 'r9', block_id, 0, '{}', 'now' FROM screen_opening LIMIT 1"
    refused(ledger, sql, "no first load of its own")
