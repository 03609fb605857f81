"""A lost ledger is made again from the run directories alone, and comes to the same best."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from nights import lever, night, opened, order

from flywheel import best
from flywheel.cli.app import main
from flywheel.errors import LedgerError, RecordError, UsageError
from flywheel.files import dump, read_json, write_atomic
from flywheel.ledger import store, views
from flywheel.ledger.rebuild import rebuild
from flywheel.ledger.replay import Replayed, replay
from flywheel.ledger.rows import View
from flywheel.ledger.store import Ledger
from flywheel.ledger.verify import verify
from flywheel.loop import entry, planned
from flywheel.loop.order import Order
from flywheel.run.manifest import Manifest


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Order]:
    """Two campaigns on the fake engine, with a promotion, a rejection, a cold lever and deaths."""
    patch = pytest.MonkeyPatch()
    root = tmp_path_factory.mktemp("lived")
    patch.setenv("FLYWHEEL_LEASE", str(root / "device.lock"))
    # No power is cut here.
    patch.setattr(store, "SYNCHRONOUS", "OFF")
    asked = order(root, "--effect", "threads=2:0.8", "--effect", "moe=gather:1.1")
    faster, slower = lever(), lever("moe", "gather")
    dies = order(root, "--fault", "sigkill", budget_runs=1)
    with opened(asked) as ledger:
        night(asked, ledger, [faster, slower], io.StringIO()).run()
        planned.close_campaign(ledger, 1, "the first is over", now_utc="2026-11-29T00:00:00Z")
        cold = lever("attention", "joint", hot=False)
        again = order(root, "--effect", "threads=2:0.8", budget_runs=6)
        night(again, ledger, [cold], io.StringIO()).run()
        night(dies, ledger, [lever("prefill_chunk", 32)], io.StringIO()).run()
    yield asked
    patch.undo()


def seen(path: Path) -> View:
    ledger = Ledger.read(path)
    with ledger.reading() as connection:
        view = views.load(connection)
    ledger.close()
    return view


def copy_of_runs(lived: Order, to: Path) -> Path:
    return Path(shutil.copytree(lived.runs_dir, to / "runs"))


def blocks(view: View) -> list[tuple[object, ...]]:
    return [
        (b.id, b.variant_id, b.number, b.pattern, b.seed, b.estimate, b.void_code,
         [(r.id, r.slot, r.outcome, r.code, r.log_sha256) for r in b.runs])
        for b in view.blocks()
    ]  # fmt: skip


def decisions(view: View) -> list[tuple[object, ...]]:
    return [(d.variant_id, d.ending, d.code, d.sentence, d.e_value, d.alpha_t, d.test)
            for d in view.decisions]  # fmt: skip


def test_run_directories_alone_give_the_same_history_and_best(lived: Order, tmp_path: Path) -> None:
    path = tmp_path / "again.db"
    found = replay(copy_of_runs(lived, tmp_path), path)
    before, after = seen(lived.ledger), seen(path)
    assert {d.ending for d in before.decisions} >= {"promoted", "rejected"}
    assert {r.outcome for b in before.blocks() for r in b.runs} >= {"ok", "killed"}
    assert found == Replayed(len(list(lived.runs_dir.iterdir())), (), best.fold(before))
    assert found.best.config == {"threads": 2}
    assert blocks(after) == blocks(before)
    assert decisions(after) == decisions(before)
    assert [c.settings for c in after.campaigns] == [c.settings for c in before.campaigns]
    ledger = Ledger.read(path)
    assert rebuild(ledger).same
    assert verify(ledger).whole
    ledger.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again.db", "runs"]


def _other_digit(found: re.Match[str]) -> str:
    return found[0][:-1] + ("1" if found[0].endswith("2") else "2")


def test_a_changed_log_does_not_count_again(lived: Order, tmp_path: Path) -> None:
    runs = copy_of_runs(lived, tmp_path)
    for log in runs.glob("*/run.log"):
        text = log.read_text()
        log.write_text(re.sub(r'"decode_ns": \d', _other_digit, text, count=1))
    replay(runs, tmp_path / "again.db")
    outcomes = {r.outcome for b in seen(tmp_path / "again.db").blocks() for r in b.runs}
    assert "ok" not in outcomes


def test_what_only_the_loop_saw_is_kept(lived: Order, tmp_path: Path) -> None:
    runs = copy_of_runs(lived, tmp_path)
    first = sorted(runs.iterdir())[0]
    said = read_json(first / entry.FILE)
    assert said is not None
    write_atomic(
        first / entry.FILE,
        dump({**said, "outcome": "void", "code": "foreign_process", "detail": "another"}),
    )
    replay(runs, tmp_path / "again.db")
    run = seen(tmp_path / "again.db").blocks()[0].runs[0]
    assert (run.id, run.outcome, run.code) == (first.name, "void", "foreign_process")


def test_an_outcome_cannot_make_a_dead_run_good(lived: Order, tmp_path: Path) -> None:
    runs = copy_of_runs(lived, tmp_path)
    dead = {r.id for b in seen(lived.ledger).blocks() for r in b.runs if r.outcome != "ok"}
    for run in dead:
        said = read_json(runs / run / entry.FILE)
        assert said is not None
        write_atomic(runs / run / entry.FILE, dump({**said, "outcome": "ok", "code": ""}))
    replay(runs, tmp_path / "again.db")
    again = {r.id for b in seen(tmp_path / "again.db").blocks() for r in b.runs
             if r.outcome != "ok"}  # fmt: skip
    assert again == dead


def test_runs_without_the_loop_s_word_are_read_again(lived: Order, tmp_path: Path) -> None:
    runs = copy_of_runs(lived, tmp_path)
    for said in runs.glob(f"*/{entry.FILE}"):
        said.unlink()
    found = replay(runs, tmp_path / "again.db")
    assert found.best.config == {"threads": 2}
    assert blocks(seen(tmp_path / "again.db")) == blocks(seen(lived.ledger))


def test_a_history_with_a_hole_is_refused_and_leaves_nothing(lived: Order, tmp_path: Path) -> None:
    runs = copy_of_runs(lived, tmp_path)
    manifest = sorted(runs.iterdir())[2] / "manifest.json"
    told = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**told, "lineage": None}))
    with pytest.raises(LedgerError, match="does not say where its run belongs"):
        replay(runs, tmp_path / "again.db")
    manifest.write_text("{")
    with pytest.raises(RecordError, match="no readable"):
        replay(runs, tmp_path / "again.db")
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]


def test_an_existing_ledger_is_left_alone(lived: Order, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is there already"):
        replay(lived.runs_dir, lived.ledger)
    with pytest.raises(UsageError, match="no run directories"):
        replay(tmp_path, tmp_path / "again.db")
    assert list(tmp_path.iterdir()) == []


def test_the_command_names_the_best_that_it_came_to(
    lived: Order, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = str(tmp_path / "again.db")
    code = main(["ledger", "rebuild", "--from", str(lived.runs_dir), "--out", again, "--json"])
    told = json.loads(capsys.readouterr().out)
    assert code == 0
    assert (told["best"], told["skipped"]) == ({"threads": 2}, [])
    assert told["runs"] == len(list(lived.runs_dir.iterdir()))


def test_a_manifest_carries_its_lineage(lived: Order) -> None:
    told = Manifest.read(sorted(lived.runs_dir.iterdir())[0]).lineage
    assert told is not None
    assert set(told) == {"campaign", "block"}


def test_screens_that_share_an_incumbent_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYWHEEL_LEASE", str(tmp_path / "device.lock"))
    tried = (("threads", 2), ("moe", "gather"), ("attention", "joint"), ("prefill_chunk", 32),
             ("compile", "blocks"), ("markov", "table"))  # fmt: skip
    slow = [part for field, value in tried for part in ("--effect", f"{field}={value}:1.3")]
    asked = order(tmp_path, *slow)
    levers = [lever(field, value, hot=False) for field, value in tried]
    with opened(asked) as ledger:
        night(asked, ledger, levers, io.StringIO()).run()
        assert rebuild(ledger).same
    lived, again = seen(asked.ledger), tmp_path / "again.db"
    shared = [b for b in lived.blocks() if b.opening is not None]
    assert [[r.slot for r in b.runs] for b in shared] == [[1, 2, 3]] * len(shared)
    assert shared
    replay(asked.runs_dir, again)
    assert [[r.id for r in b.loads] for b in seen(again).blocks()] == [
        [r.id for r in b.loads] for b in lived.blocks()
    ]
    assert blocks(seen(again)) == blocks(lived)
