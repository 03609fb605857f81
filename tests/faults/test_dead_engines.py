"""Every way in which an engine dies or lies ends in a reason, never in a measurement."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import manifest_for, run_to_end

from flywheel.run import launch
from flywheel.run.parse import Refusal, parse
from flywheel.run.record import RunRecord
from flywheel.selftest.fault import Fault
from flywheel.selftest.matrix import MATRIX


def outcome(root: Path, *options: str, **fields: object) -> RunRecord | Refusal:
    manifest = manifest_for(root, options=options, **fields)  # type: ignore[arg-type]
    state = run_to_end(root, manifest)
    assert state.phase == "left"
    assert state.exit_status is not None
    assert state.exit_status.group_empty
    run_dir = root / "runs" / manifest.run_id
    return parse(launch.log_text(run_dir), manifest, state.exit_status)


def test_a_whole_run_is_a_measurement(tmp_path: Path) -> None:
    record = outcome(tmp_path)
    assert isinstance(record, RunRecord), record
    assert len(record.points) == 12
    assert len(record.plains) == 3
    assert record.header.arm("B").effective["threads"] == 2


@pytest.mark.parametrize(
    "fault", [pytest.param(one, id=one.name) for one in MATRIX if one.noun in ("number", "arm")]
)
def test_a_lie_is_refused_with_its_reason(tmp_path: Path, fault: Fault) -> None:
    lie = "gate" if fault.name == "gate_of_the_incumbent" else fault.name
    refusal = outcome(tmp_path, "--fault", lie)
    assert isinstance(refusal, Refusal), f"{fault.name} was measured"
    assert refusal.code in fault.codes, refusal
    assert refusal.detail
    assert refusal.ending == ("incorrect" if lie == "gate" else "void")


@pytest.mark.parametrize("lie", ["checkpoint", "source"])
def test_a_hash_that_changed_by_the_end_is_refused(tmp_path: Path, lie: str) -> None:
    refusal = outcome(tmp_path, "--fault", lie)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "changed_underfoot"


def test_a_quoted_nonce_inside_foreign_prose_counts_for_nothing(tmp_path: Path) -> None:
    assert isinstance(outcome(tmp_path, "--fault", "foreign_nonce"), RunRecord)


def test_two_arms_of_one_effective_configuration_refuse_to_compare(tmp_path: Path) -> None:
    refusal = outcome(tmp_path, arms={"A": {}, "B": {"threads": 1}})
    assert isinstance(refusal, Refusal)
    assert refusal.code == "arms_identical"


def test_a_null_lever_wants_identical_arms(tmp_path: Path) -> None:
    assert isinstance(outcome(tmp_path, arms={"A": {}, "B": {}}, null=True), RunRecord)


def test_an_engine_that_hangs_is_ended_at_its_time_limit(tmp_path: Path) -> None:
    refusal = outcome(tmp_path, "--fault", "hang", timeout_s=1.0)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "timeout"


def test_an_engine_deaf_to_term_is_killed_after_the_grace(tmp_path: Path) -> None:
    manifest = manifest_for(tmp_path, options=("--fault", "deaf"), timeout_s=1.0, grace_s=0.5)
    state = run_to_end(tmp_path, manifest)
    assert state.exit_status is not None
    assert state.exit_status.timed_out
    assert state.exit_status.signal == 9


def test_a_grandchild_left_behind_is_ended_and_voids_the_run(tmp_path: Path) -> None:
    refusal = outcome(tmp_path, "--fault", "grandchild")
    assert isinstance(refusal, Refusal)
    assert refusal.code == "group_left_behind"


def test_a_command_that_does_not_exist_is_a_reason_not_a_crash(tmp_path: Path) -> None:
    manifest = manifest_for(tmp_path)
    body = {**manifest.to_json(), "argv": ["/nonexistent/engine"]}
    refused = run_to_end(tmp_path, manifest.from_json(body))
    result = parse("", manifest, refused.exit_status)
    assert isinstance(result, Refusal)
    assert result.code == "not_started"


def test_the_supervisor_refuses_a_run_that_another_one_claimed(tmp_path: Path) -> None:
    manifest = manifest_for(tmp_path)
    run_dir = tmp_path / "runs" / manifest.run_id
    launch.prepare(run_dir, manifest)
    assert launch.disown(run_dir)
    assert launch.start(run_dir).wait(20) == 3
    assert not (run_dir / "run.log").exists()
    assert launch.look(run_dir).phase == "unclaimed"
