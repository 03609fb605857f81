"""The guard's rule: what must live lives, what must die dies while memory is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from flywheel.guard.limits import MB, Limits, limits
from flywheel.guard.rule import Lines, Pace, Reading, State, Trigger, step, wait_ns
from flywheel.guard.traces import BOX_BYTES, HEALTHY_LOW_BYTES, Trace, traces

LIMITS = limits(BOX_BYTES, HEALTHY_LOW_BYTES)
LINES, PACE = LIMITS.lines, LIMITS.pace
EVEN = Pace(200_000_000, 200_000_000, 0)
TRACES = {trace.name: trace for trace in traces()}


def fed(*readings: tuple[float, float], lines: Lines = LINES, pace: Pace = EVEN) -> Trigger | None:
    """The first trigger of readings (seconds, MB)."""
    state = State()
    for seconds, level in readings:
        state, trigger = step(
            state, Reading(round(seconds * 1e9), round(level * MB)), lines, pace
        )
        if trigger is not None:
            return trigger
    return None


def simulated(
    chosen: Limits, level_bytes: Callable[[float], float], phase_s: float, lasts_s: float,
    late_s: float = 0.0,
) -> tuple[Trigger | None, float]:
    """The trigger of a guard that first looks at ``phase_s``, and when; ``late_s`` a poll."""
    state, now_ns = State(), round(phase_s * 1e9)
    while now_ns < lasts_s * 1e9:
        level = max(0, int(level_bytes(now_ns / 1e9)))
        state, trigger = step(state, Reading(now_ns, level), chosen.lines, chosen.pace)
        if trigger is not None:
            return trigger, now_ns / 1e9
        now_ns += wait_ns(state, chosen.lines, chosen.pace) + round(late_s * 1e9)
    return None, lasts_s


def test_level_wants_polls_in_a_row() -> None:
    assert fed((0, 1499), (0.2, 1499)) is None
    assert fed((0, 1499), (0.2, 1501), (0.4, 1499), (0.6, 1499)) is None
    trigger = fed((0, 1600), (0.2, 1499), (0.4, 1498), (0.6, 1497))
    assert trigger is not None
    assert (trigger.kind, trigger.since_ns) == ("level", 200_000_000)
    assert trigger.available_bytes == 1497 * MB


def test_close_polls_do_not_shorten_the_patience_of_level() -> None:
    close = [(0.02 * k, 1400.0) for k in range(20)]
    assert fed(*close) is None
    assert fed(*close, (0.4, 1400)) is not None


def test_slope_wants_both_the_line_and_the_fall() -> None:
    assert fed((0, 4000), (0.2, 3000), (0.4, 2100)) is None
    assert fed((0, 1990), (0.2, 1950), (0.4, 1910), (0.6, 1870)) is None
    trigger = fed((0, 2300), (0.2, 1900), (0.4, 1700))
    assert trigger is not None
    assert trigger.kind == "slope"
    assert trigger.fall_bytes_per_s == 1000 * MB
    assert fed((0, 2300), (0.2, 1900), (0.4, 1899), (0.6, 1700)) is None


def test_a_late_poll_is_not_a_fast_fall() -> None:
    slow = [(0.0, 2050.0), (0.2, 2010.0)]
    # 390 MB a second for two seconds that nobody looked: not over 400, however long it took.
    assert fed(*slow, (1.2, 1900.0), (2.2, 1510.0)) is None
    assert fed((0, 2050), (0.2, 1900), (0.4, 1750)) is not None
    assert fed((0, 2050), (1.0, 1900), (2.0, 1750)) is None


def test_a_fall_that_is_over_does_not_count_again() -> None:
    # From far above to just under the danger line between two polls, then at rest.
    assert fed((0, 8000), (0.2, 1900), (0.22, 1900), (0.24, 1900), (0.26, 1900)) is None


def test_two_readings_at_the_same_moment_divide_by_nothing() -> None:
    assert fed((1, 1900), (1, 1800), (1, 1700)) is None


def test_slope_can_be_switched_off() -> None:
    assert fed((0, 9000), (0.2, 1900), (0.4, 1600), lines=replace(LINES, fall_polls=0)) is None


@pytest.mark.parametrize("late_s", [0.0, 0.005])
@pytest.mark.parametrize("name", ["runaway", "sudden_runaway"])
def test_a_runaway_dies_with_memory_left_whenever_the_polls_fall(name: str, late_s: float) -> None:
    trace = TRACES[name]
    for phase in range(40):
        trigger, at_s = simulated(
            LIMITS, trace.level_bytes, phase * 0.005, trace.lasts_s, late_s
        )
        assert trigger is not None
        assert trigger.kind == "slope"
        assert trace.level_bytes(at_s) > 1000 * MB, phase


@pytest.mark.parametrize("name", ["healthy_load", "dip", "steady"])
def test_a_healthy_run_lives_whenever_the_polls_fall(name: str) -> None:
    trace = TRACES[name]
    for phase in range(40):
        assert simulated(LIMITS, trace.level_bytes, phase * 0.005, 3.0)[0] is None


@pytest.mark.parametrize("name", ["runaway_even_pace", "runaway_slow_guard"])
def test_an_even_pace_is_too_slow_for_a_runaway(name: str) -> None:
    """The gate bites: the settings that this guard replaces are shown to kill too late."""
    trace: Trace = TRACES[name]
    for phase in range(40):
        trigger, at_s = simulated(trace.limits, trace.level_bytes, phase * 0.005, trace.lasts_s)
        assert trigger is not None
        assert trace.level_bytes(at_s) < 0, phase


def test_a_leak_of_one_megabyte_a_second_is_caught_by_level() -> None:
    def level(s: float) -> float:
        return LINES.danger_bytes + 20 * MB - s * MB

    trigger, at_s = simulated(LIMITS, level, 0.0, 900.0)
    assert trigger is not None
    assert trigger.kind == "level"
    assert 520 < at_s < 521
    assert level(at_s) > LINES.floor_bytes - 2 * MB


def test_the_pace_quickens_towards_danger_and_never_beyond_its_ends() -> None:
    def wait(level: float, fall: int = 0) -> int:
        state = State(past=(Reading(0, round(level * MB)),), fall_bytes_per_s=fall)
        return wait_ns(state, LINES, PACE)

    assert wait(100_000) == PACE.poll_ns
    assert wait(1900) == PACE.close_poll_ns
    assert PACE.close_poll_ns < wait(4000) < PACE.poll_ns
    assert wait(4000, 40_000 * MB) < wait(4000)
    assert wait_ns(State(), LINES, PACE) == PACE.poll_ns
    assert wait_ns(State(past=(Reading(0, 0),)), LINES, EVEN) == EVEN.poll_ns


def test_low_water_and_peak_fall_are_remembered() -> None:
    state = State()
    for seconds, level in ((0, 9000), (0.2, 7000), (0.4, 8000)):
        state, _ = step(state, Reading(round(seconds * 1e9), level * MB), LINES, EVEN)
    assert state.low_water_bytes == 7000 * MB
    assert state.peak_fall_bytes_per_s == 10_000 * MB
    assert len(state.past) <= 2
