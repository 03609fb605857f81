"""Windows of the day, and how spans and moments are written."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from flywheel.clock import SystemClock, Window, span_text, utc_text
from flywheel.errors import UsageError


def at(hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 11, 28, hour, minute, 59, tzinfo=UTC)


def test_a_window_may_cross_midnight() -> None:
    night = Window.parse("22:00-07:00")
    assert night.contains(at(22))
    assert night.contains(at(3))
    assert night.contains(at(6, 59))
    assert not night.contains(at(7))
    assert not night.contains(at(21, 59))
    assert str(night) == "22:00-07:00"
    day = Window.parse(" 9:30 - 17:00 ")
    assert day.contains(at(9, 30))
    assert not day.contains(at(17))
    assert not day.contains(at(3))


@pytest.mark.parametrize("text", ["", "22-7", "25:00-07:00", "22:00-22:00", "22:60-23:00", "x"])
def test_what_is_no_window_is_said(text: str) -> None:
    with pytest.raises(UsageError):
        Window.parse(text)


def test_spans_and_moments_read_well() -> None:
    assert [span_text(s) for s in (-1, 7, 65, 3600 * 9 + 12 * 60)] == [
        "0 s", "7 s", "1 min 05 s", "9 h 12 min",
    ]  # fmt: skip
    assert utc_text(at(3)) == "2026-11-28T03:00:59Z"
    clock = SystemClock()
    before = clock.monotonic_s()
    clock.sleep(0.001)
    assert clock.monotonic_s() > before
    assert clock.now().tzinfo is not None
    assert utc_text().endswith("Z")
