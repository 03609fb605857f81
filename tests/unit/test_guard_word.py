"""A guard's word counts only whole, sealed, about this run and beside the log that it sealed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from logs import honest, manifest, sealed

from flywheel.guard.limits import limits
from flywheel.guard.watch import Gaps
from flywheel.guard.word import FILE, LOG_FILE, GuardWord, read_sealed
from flywheel.run.exit_status import ExitStatus
from flywheel.run.parse import Refusal, parse

LOG = b"a line\n"
WORD = GuardWord(
    "left", run_id="r1", nonce="n", polls=5, low_water_bytes=7, log_bytes=len(LOG),
    log_sha256=hashlib.sha256(LOG).hexdigest(), stuck=(),
)  # fmt: skip
EXIT = ExitStatus(
    run_id="r1", status=0, signal=None, timed_out=False, stopped=False, duration_ns=1,
    started_utc="", ended_utc="", leftovers=0, group_empty=True, peak_rss_bytes=None,
    log_bytes=None, log_sha256=None, engine=None, supervisor=None,
)  # fmt: skip
GUARDED = manifest(guard=limits(2**34).to_json())


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / LOG_FILE).write_bytes(LOG)
    WORD.write(tmp_path)
    return tmp_path


def test_a_word_survives_its_file(run_dir: Path) -> None:
    assert read_sealed(run_dir, "r1", "n") == WORD


def test_a_word_that_does_not_hold_is_a_lost_guard(run_dir: Path) -> None:
    assert "another run" in read_sealed(run_dir, "r2", "n").reason
    assert "another run" in read_sealed(run_dir, "r1", "m").reason
    body = json.loads((run_dir / FILE).read_text())
    for change in ({"low_water_bytes": 8}, {"seal": "x"}, {"verdict": "fine"}, {"polls": "5"}):
        (run_dir / FILE).write_text(json.dumps({**body, **change}))
        assert "sealed" in read_sealed(run_dir, "r1", "n").reason
    (run_dir / FILE).write_text(json.dumps(body))
    (run_dir / LOG_FILE).write_bytes(LOG + b"more\n")
    assert "log is not what it sealed" in read_sealed(run_dir, "r1", "n").reason
    (run_dir / LOG_FILE).unlink()
    assert "log is gone" in read_sealed(run_dir, "r1", "n").reason
    (run_dir / FILE).unlink()
    lost = read_sealed(run_dir, "r1", "n")
    assert (lost.verdict, lost.reason) == ("lost", "the guard left no word")


def test_an_exit_status_carries_the_guard_and_old_ones_do_without(tmp_path: Path) -> None:
    one = replace(EXIT, guard=WORD, suspended_s=2.5, wall_step_s=-1.0, stuck=True)
    one.write(tmp_path)
    assert ExitStatus.read(tmp_path) == one
    body = one.to_json()
    for name in ("guard", "suspended_s", "wall_step_s", "stuck"):
        del body[name]
    assert ExitStatus.from_json(body) == EXIT
    assert ExitStatus.from_json({**body, "guard": {"verdict": "?"}}) is None
    assert ExitStatus.from_json({**body, "suspended_s": "long"}) is None


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"guard": WORD}, "ok"),
        ({"guard": None}, "guard_lost"),
        ({"guard": GuardWord("off")}, "guard_lost"),
        ({"guard": GuardWord("lost", "x")}, "guard_lost"),
        ({"guard": GuardWord("killed", "x", trigger="slope"), "status": None, "signal": 9},
         "guard_killed"),
        ({"guard": GuardWord("killed", "x", trigger="overtime"), "status": None, "signal": 9},
         "timeout"),
        ({"guard": GuardWord("lost", "x"), "stopped": True}, "stopped"),
        ({"guard": WORD, "stuck": True, "status": None}, "engine_stuck"),
        ({"guard": WORD, "suspended_s": 0.9}, "ok"),
        ({"guard": WORD, "suspended_s": 1.1}, "suspended"),
        ({"guard": WORD, "wall_step_s": 7200.0}, "ok"),
    ],
)  # fmt: skip
def test_only_a_run_that_was_guarded_to_the_end_is_measured(
    changes: dict[str, Any], code: str
) -> None:
    result = parse(sealed(honest()), GUARDED, replace(EXIT, **changes))
    assert (result.code if isinstance(result, Refusal) else "ok") == code


def test_a_run_that_was_planned_without_a_guard_needs_none() -> None:
    assert not isinstance(parse(sealed(honest()), manifest(), EXIT), Refusal)


def test_gaps_are_counted_to_the_millisecond() -> None:
    gaps = Gaps()
    assert gaps.p99_s() == 0.0
    for _ in range(198):
        gaps.add(20_300_000)
    gaps.add(250_000_000)
    assert gaps.worst_ns == 250_000_000
    assert gaps.p99_s() == 0.021
    gaps.add(9_000_000_000)
    assert gaps.p99_s() == 0.021
    gaps.add(9_000_000_000)
    assert gaps.p99_s() == 0.251
