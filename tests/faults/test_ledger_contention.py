"""Readers and a writer share a ledger without an error, a loss or a repetition."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flywheel.ledger import integrity, store, views
from flywheel.ledger.bench import contention, scale
from flywheel.ledger.bench.__main__ import main
from flywheel.ledger.bench.fabricate import fabricate
from flywheel.ledger.store import Ledger
from flywheel.report import gather


def test_readers_and_a_writer_get_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contention, "MEASUREMENTS_BEFORE", 3000)
    told = contention.contention(tmp_path, 5.0)
    assert told["errors"] == 0, told
    assert len(told["readers"]) == contention.READERS
    assert all(one["acts"] > 3 for one in told["readers"]), told
    wrote = told["writer"]["acts"]
    assert wrote > 10, told
    ledger = Ledger.read(tmp_path / "ledger.db")
    with ledger.reading() as connection:
        runs = [run for block in views.load(connection).blocks() for run in block.runs]
        assert integrity.problems(connection) == ()
    ledger.close()
    assert len(runs) == len({run.id for run in runs}) == told["runs_at_end"]
    assert sum(run.created_utc.startswith("2026-06") for run in runs) == wrote


def test_a_made_up_history_is_a_whole_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SYNCHRONOUS", "OFF")
    ledger = Ledger.open(tmp_path / "ledger.db")
    made = fabricate(ledger, 20_000)
    with ledger.reading() as connection:
        assert integrity.problems(connection) == ()
        view = views.load(connection)
        counted = connection.exec_driver_sql("SELECT count(*) FROM measurement").scalar_one()
    assert counted == made.measurements >= 20_000
    assert sum(len(b.runs) for b in view.blocks()) == made.runs
    assert gather.gather(ledger, ()).rows
    ledger.close()


def test_the_figures_are_printed_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale, "REPEATS", 1)
    assert main(["scale", "--measurements", "10", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told["commands"]) == {"report", "status"}
    assert told["machine"]["sqlite"]
