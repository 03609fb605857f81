"""Windows of the day, and how spans and moments are written."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from flywheel.box.clock import SystemClock, Window, count, span_text, utc_text
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
    assert [count(n, "run") for n in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]


BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("window", "moment", "left_h"),
    [
        ("22:00-07:00", datetime(2026, 6, 1, 23, 0, tzinfo=BERLIN), 8.0),
        ("22:00-07:00", datetime(2026, 6, 1, 6, 30, tzinfo=BERLIN), 0.5),
        ("22:00-07:00", datetime(2026, 6, 1, 12, 0, tzinfo=BERLIN), 0.0),
        # The night of the last Sunday in March is an hour shorter, that in October one longer.
        ("22:00-07:00", datetime(2026, 3, 28, 22, 0, tzinfo=BERLIN), 8.0),
        ("22:00-07:00", datetime(2026, 10, 24, 22, 0, tzinfo=BERLIN), 10.0),
        # 02:30 does not happen in that March night: the clocks jump past it at two.
        ("22:00-02:30", datetime(2026, 3, 29, 1, 30, tzinfo=BERLIN), 0.5),
        # It happens twice in October, and the window shuts, opens and shuts again.
        ("22:00-02:30", datetime(2026, 10, 25, 2, 15, fold=0, tzinfo=BERLIN), 0.25),
        ("22:00-02:30", datetime(2026, 10, 25, 2, 15, fold=1, tzinfo=BERLIN), 0.25),
    ],
)
def test_what_is_left_of_a_window_is_right_across_a_change_of_clocks(
    window: str, moment: datetime, left_h: float
) -> None:
    assert Window.parse(window).left_s(moment) == pytest.approx(left_h * 3600)


def test_the_boxs_own_zone_changes_its_clocks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        moment = datetime(2026, 3, 28, 21, 0, tzinfo=UTC).astimezone()
        assert not isinstance(moment.tzinfo, ZoneInfo)
        assert Window.parse("22:00-07:00").left_s(moment) == 8 * 3600
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_window_open_all_day_but_a_minute_is_never_endless() -> None:
    window = Window.parse("12:01-12:00")
    assert window.length_s == 24 * 3600 - 60
    assert window.left_s(datetime(2026, 6, 1, 13, 0, tzinfo=UTC)) == 23 * 3600
    assert Window.parse("22:00-07:00").length_s == 9 * 3600
    half = datetime(2026, 6, 1, 6, 59, 30, tzinfo=UTC) + timedelta(milliseconds=500)
    assert Window.parse("22:00-07:00").left_s(half) == pytest.approx(29.5)
