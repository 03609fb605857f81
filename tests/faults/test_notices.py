"""People are told of promotions, halts and the end of a night, and the night does not wait."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import wait_for
from nights import lever, night, opened, order

from flywheel.box.clock import SystemClock
from flywheel.errors import Refused
from flywheel.loop.herald import Herald
from flywheel.loop.judge import Entered, RunEnd
from flywheel.run.ingest import Ingested
from flywheel.run.manifest import Manifest

KEEP = (
    "import json, os, pathlib, sys\n"
    "told = json.load(sys.stdin)\n"
    "with (pathlib.Path(__file__).parent / 'told.jsonl').open('a') as out:\n"
    "    out.write(json.dumps(told) + '\\n')\n"
)


@pytest.fixture
def target(tmp_path: Path) -> str:
    """A command that keeps what it is told."""
    script = tmp_path / "keep.py"
    script.write_text(KEEP)
    return f"{sys.executable} {script}"


def told(folder: Path, count: int) -> list[dict[str, Any]]:
    """That many notices, once they have come; in the order in which they were made."""
    kept = folder / "told.jsonl"
    assert wait_for(lambda: kept.exists() and kept.read_text().count("\n") >= count, 60)
    found = [json.loads(line) for line in kept.read_text().splitlines()]
    assert len(found) == count
    order_of = {"guard_kill": 0, "promotion": 1, "halt": 2, "end": 3}
    return sorted(found, key=lambda one: order_of[one["event"]])


def test_a_promotion_and_the_end_are_told(tmp_path: Path, target: str) -> None:
    asked = order(tmp_path, "--effect", "threads=2:0.8", notify=(target,))
    with opened(asked) as ledger:
        night(asked, ledger, [lever()], io.StringIO()).run()
    promotion, end = told(tmp_path, 2)
    assert promotion["event"] == "promotion"
    assert promotion["text"].startswith("threads -> 2: promoted, saves")
    assert promotion["facts"]["lever"] == "threads-2"
    assert promotion["facts"]["gain"] > 0.1
    assert end["facts"]["promotions"] == 1
    assert "no lever is left to try" in end["text"]


def test_a_halt_is_told_once_and_a_refused_night_is_not(tmp_path: Path, target: str) -> None:
    asked = order(tmp_path, "--fault", "gate", notify=(target,))
    with opened(asked) as ledger:
        night(asked, ledger, [lever()], io.StringIO()).run()
        with pytest.raises(Refused):
            night(asked, ledger, [lever()], io.StringIO()).run()
    halt, end = told(tmp_path, 2)
    assert halt["event"] == "halt"
    assert "a gate failed on the incumbent" in halt["text"]
    assert end["facts"]["halted"] is True


def test_a_kill_of_the_guard_is_told_with_its_reason(tmp_path: Path, target: str) -> None:
    asked = order(tmp_path, budget_runs=1)
    with opened(asked) as ledger:
        night(asked, ledger, [lever()], io.StringIO()).run()
    (run_dir,) = asked.runs_dir.iterdir()
    manifest = Manifest.read(run_dir)
    end = RunEnd("killed", "guard_killed", "1.9 GB left, falling", "t", "t", 1)
    herald = Herald(replace(asked, notify=(target,)), SystemClock(), pytest.fail)
    herald.entered(manifest, Ingested(end, "", None, None), Entered("b1", void="guard_killed"))
    (kill,) = told(tmp_path, 1)
    assert kill["event"] == "guard_kill"
    assert kill["text"] == f"the guard ended run {run_dir.name} (null): 1.9 GB left, falling"
