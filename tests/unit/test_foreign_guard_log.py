"""Three dialects of guard log are read, and a kill that freed nothing is named."""

from __future__ import annotations

import random

from foreign_logs import GUARD
from hypothesis import given, settings, strategies as st

from flywheel.foreign import reading
from flywheel.foreign.guard_log import GuardLog, Reader
from flywheel.foreign.reading import Reading


def read(text: str) -> Reading:
    return reading.reread("guard", "memguard.log", text.encode("utf-8", "surrogateescape"))


def log(text: str) -> GuardLog:
    reader = Reader()
    for number, line in enumerate(text.splitlines(), 1):
        reader.feed(number, line)
    return reader.log()


def test_every_dialect_is_read_and_every_ending_counted() -> None:
    found = read(GUARD)
    assert found.ok, found.reasons
    facts = found.facts()
    assert facts["dialects"] == ["level_once", "level_times", "slope"]
    assert facts["endings"] == {"left": 3, "killed": 2, "exhausted": 0, "open": 1}
    assert facts["kills_by_cause"] == {"level": 1, "slope": 1}


def test_a_kill_that_left_memory_under_the_floor_is_named() -> None:
    facts = read(GUARD).facts()
    assert facts["kills_that_freed_nothing"] == [
        "2026-01-02T13:01:00-04:00 pid 22 (slope): 1076 MB before, 700 MB after; it freed nothing"
    ]


def test_a_guard_that_saw_an_empty_machine_was_not_armed_and_lends_no_low_water() -> None:
    found = log(GUARD)
    assert [s.pattern for s in found.sessions if not s.armed] == ["other"]
    assert found.low_water_mb == 2443
    assert found.peak_fall_mb_s == 8210


def test_a_session_without_an_end_stays_open() -> None:
    assert [s.pattern for s in log(GUARD).sessions if s.ending == "open"] == ["lost"]


def test_overlapping_guards_each_get_their_own_end() -> None:
    start = "[memguard] floor=1500MB x3 slope=<-400MB/s below 2000MB poll=0.2s pat=d started {}\n"
    end = "[memguard] victim gone, exiting. low-water {} MB, peak fall rate 9 MB/s {}\n"
    text = (
        start.format("2026-01-02T10:00:00-04:00") + start.format("2026-01-02T10:00:20-04:00")
        + "[memguard] watching pid 5 (d)\n" * 2
        + end.format(3636, "2026-01-02T10:05:00-04:00")
        + end.format(3653, "2026-01-02T10:05:00-04:00")
    )
    assert [(s.pid, s.ending) for s in log(text).sessions] == [(5, "left"), (5, "left")]


def test_lines_of_no_guard_or_out_of_order_are_reasons() -> None:
    for text, code in (
        (GUARD + "[memguard] victim gone, exiting. low-water nan MB\n", "malformed_line"),
        (GUARD + "cuda error\n", "malformed_line"),
        (GUARD + GUARD, "out_of_order"),
        ("[memguard] killed. MemAvailable now 5 MB\n", "out_of_order"),
        ("[memguard] meminfo exhausted, exiting\n", "out_of_order"),
        (GUARD.replace("T10:00:00", "T99:00:00"), "malformed_line"),
        (GUARD[:-9], "cut_line"),
    ):
        found = read(text)
        assert not found.ok
        assert code in [r.code for r in found.reasons]
        assert found.measurements() == ()


def test_shuffled_lines_are_refused() -> None:
    lines = GUARD.splitlines(keepends=True)
    for seed in range(20):
        random.Random(seed).shuffle(lines)
        assert not read("".join(lines)).ok


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200), st.integers(0, len(GUARD)))
def test_any_bytes_are_refused_or_read_and_never_an_exception(noise: bytes, at: int) -> None:
    raw = GUARD.encode()
    found = reading.reread("guard", "memguard.log", raw[:at] + noise + raw[at:])
    assert found.ok or found.reasons
