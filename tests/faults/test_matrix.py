"""The fault matrix: what `flywheel selftest --faults` injects, each fault a real process.

Faults that repeat another's mechanism are left to that command; lies of the engine are also told to
a bare supervisor, in test_dead_engines.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from flywheel.selftest.engine.ends import ENDS
from flywheel.selftest.engine.lies import LIES
from flywheel.selftest.fault import Fault
from flywheel.selftest.matrix import MATRIX, inject

LIES_HERE = {"nan", "gate", "gate_of_the_incumbent", "other_order", "arm_not_live"}
REPEATED = {
    "abort", "sigill", "sigfpe", "sigterm_by_another", "fails_late", "hang", "hang_early",
    "hang_sealed", "stops", "not_a_program", "empty_log", "seal_missing", "log_gone", "appended",
    "checkpoint_grown", "checkpoint_gone", "git_commit", "disk_full_manifest", "exit_cut",
    "disk_full_ledger", "ledger_locked", "loop_killed", "memory_dip", "memory_level",
    "guard_stopped_briefly", "wall_clock_forward", "lease_rewritten", "supervisor_stopped",
}  # fmt: skip


def here(fault: Fault) -> bool:
    if fault.noun in ("number", "arm"):
        return fault.name in LIES_HERE
    return not fault.slow and fault.name not in REPEATED


@pytest.mark.parametrize(
    "fault", [pytest.param(one, id=one.name) for one in MATRIX if here(one)]
)
def test_a_fault_is_recorded_and_harms_nothing(tmp_path: Path, fault: Fault) -> None:
    found = inject(fault, tmp_path)
    if found.skipped:
        pytest.skip(found.skipped)
    assert not found.wrong
    assert not found.lever
    assert not found.device
    assert not found.ledger
    assert not found.false_accept


def test_the_matrix_is_large_and_every_fault_of_the_engine_is_in_it() -> None:
    names = [fault.name for fault in MATRIX]
    assert len(names) == len(set(names)) >= 60
    # These are the ends of another fault that has its own name, or of a disturbance.
    elsewhere = {"signal", "much_prose", "checkpoint", "source", "sum"}
    assert (set(ENDS) | set(LIES)) - elsewhere <= {*names}
    assert set(names) >= REPEATED | LIES_HERE


def test_a_miss_is_seen(tmp_path: Path) -> None:
    """A fault that expects something else than what happens must not pass."""
    honest = next(fault for fault in MATRIX if fault.name == "foreign_prose")
    wrong = Fault(
        "wrong", honest.noun, honest.injected, "void", ("seal_wrong",), honest.inject
    )
    found = inject(wrong, tmp_path)
    assert not found.ok
    assert found.false_accept
    assert "recorded as ok" in found.wrong
    assert "blocks entered the statistics" in found.lever
    assert "measurements" in found.ledger
