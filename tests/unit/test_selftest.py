"""What the self-test counts and prints of its verdicts."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from flywheel.errors import UsageError
from flywheel.selftest.command import chosen
from flywheel.selftest.engine.lies import LIES
from flywheel.selftest.matrix import MATRIX
from flywheel.selftest.table import as_json, counts, fault_line, table
from flywheel.selftest.verdict import Verdict


def verdict(name: str, outcome: str, expected: str, **fields: Any) -> Verdict:
    return Verdict(name, "log", "something", outcome, "", expected, **fields)


GOOD = verdict("a", "void", "void seal_missing")
SURVIVED = verdict("b", "ok", "ok")
ACCEPTED = verdict("c", "ok", "void seal_wrong", wrong="recorded as ok", lever="1 blocks")
ORPHAN = verdict("d", "killed", "killed exit_signal", device="still alive: engine 7")
SKIPPED = verdict("e", "skipped", "blocked disk_full", skipped="no tmpfs can be mounted here")


def test_a_false_accept_is_counted_by_name() -> None:
    found = counts([GOOD, SURVIVED, ACCEPTED, ORPHAN, SKIPPED])
    assert found == {
        "faults": 5, "injected": 4, "skipped": 1, "refused_rightly": 1, "survived_rightly": 1,
        "false_accepts": 1, "misses": 2,
    }  # fmt: skip
    assert "4 faults injected: 1 refused rightly, 1 survived, 1 false accepts" in fault_line(
        [GOOD, SURVIVED, ACCEPTED, ORPHAN, SKIPPED]
    )


def test_the_table_shows_a_miss_and_a_skip_loudly() -> None:
    console = Console(width=200, record=True, file=None, quiet=False)
    with console.capture() as printed:
        console.print(table([GOOD, ACCEPTED, ORPHAN, SKIPPED]))
    text = printed.get()
    assert "MISS recorded as ok" in text
    assert "still alive: engine 7" in text
    assert "skipped: no tmpfs can be mounted here" in text
    assert "unharmed" in text


def test_rows_of_the_document_say_whether_they_passed() -> None:
    rows = as_json([GOOD, ACCEPTED], None, None)["faults"]["rows"]
    assert [row["ok"] for row in rows] == [True, False]
    assert as_json([], None, None) == {}


def test_faults_are_chosen_by_name_or_kind() -> None:
    assert chosen(["nan", "nan"]) == ("nan",)
    assert set(chosen(["clock"])) == {f.name for f in MATRIX if f.noun == "clock"}
    with pytest.raises(UsageError, match="no fault named nothing"):
        chosen(["nothing"])


def test_every_fault_says_what_it_expects() -> None:
    for fault in MATRIX:
        assert fault.codes, fault.name
        assert fault.outcome in ("ok", "void", "timeout", "killed", "blocked"), fault.name
        assert fault.harmless == (fault.codes == ("",)), fault.name
        assert fault.attempts == (fault.outcome in ("void", "timeout", "killed")), fault.name


def test_every_lie_bends_one_event() -> None:
    assert {lie.event for lie in LIES.values()} <= {
        "start", "loaded", "heartbeat", "control", "plain", "point", "gate", "step_cost", "memory",
        "end",
    }  # fmt: skip
