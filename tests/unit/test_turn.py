"""When another run may begin: budgets end the night, pauses and shut windows are waited out."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from clocks import FakeClock

from flywheel.box.clock import Window
from flywheel.loop.order import Order, Session
from flywheel.loop.turn import Turn
from flywheel.loop.wishes import Wishes

DAY = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)


class Desk:
    """A turn with a clock of its own and everything that it said."""

    def __init__(
        self, tmp_path: Path, *, load_s: float = 60.0, left_s: float | None = None,
        now: datetime = DAY, **fields: Any,
    ) -> None:  # fmt: skip
        self.clock = FakeClock(now)
        self.session = Session("2026-11-28T12:00:00Z")
        self.said: list[str] = []
        order = Order(tmp_path / "l.db", tmp_path, tmp_path / "s.json", ("p",), 8, **fields)
        deadline_s = None if left_s is None else self.clock.at_s + left_s
        wishes = Wishes(order.ledger, self.clock, deadline_s=deadline_s)
        self.turn = Turn(
            order, self.session, wishes, self.clock, load_s=lambda: load_s, tell=self.said.append
        )

    def over(self) -> str | None:
        wish = self.turn.over()
        return None if wish is None else wish.reason

    def waited_s(self, variant_id: str = "v1", loads: int = 1) -> float:
        began_s = self.clock.at_s
        assert self.turn.wait(variant_id, loads) is None
        return self.clock.at_s - began_s


def test_budgets_end_the_night(tmp_path: Path) -> None:
    desk = Desk(tmp_path, budget_runs=1)
    assert desk.over() is None
    desk.session.runs = 1
    assert desk.over() == "the budget of 1 run is spent"
    assert Desk(tmp_path, left_s=61.0).over() is None
    assert Desk(tmp_path, left_s=59.0).over() == "the time left is too short for another run"
    assert Desk(tmp_path, left_s=0.0).over() == "the time budget is spent"
    blocked = Desk(tmp_path)
    blocked.session.blocked_in_a_row = 3
    assert blocked.over() == "3 runs in a row could not be run"
    assert blocked.session.failed


def test_the_next_attempt_waits_and_other_levers_do_not(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.turn.pause("v1", 30.0)
    assert desk.waited_s("v2") == 0.0
    assert 30.0 <= desk.waited_s("v1") < 31.5
    assert desk.waited_s("v1") == 0.0
    assert desk.said == ["a pause before the next attempt"]


@pytest.fixture
def _coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours pass in steps of ten minutes."""
    monkeypatch.setattr("flywheel.loop.turn.LOOK_AGAIN_S", 600.0)
    monkeypatch.setattr("flywheel.loop.wishes.POLL_S", 600.0)


@pytest.mark.usefixtures("_coarse")
def test_a_shut_window_is_waited_out(tmp_path: Path) -> None:
    desk = Desk(tmp_path, window=Window.parse("22:00-07:00"))
    assert desk.waited_s() == 10 * 3600
    assert desk.waited_s() == 0.0
    assert desk.said == ["waiting for the window 22:00-07:00"]


@pytest.mark.usefixtures("_coarse")
def test_a_run_that_would_outlast_the_window_waits_for_the_next(tmp_path: Path) -> None:
    now = DAY.replace(hour=6, minute=50)
    window = Window.parse("22:00-07:00")
    assert Desk(tmp_path, load_s=599.0, now=now, window=window).waited_s() == 0.0
    assert Desk(tmp_path, load_s=601.0, now=now, window=window).waited_s() >= 15 * 3600
    # Four loads of one block belong together.
    assert Desk(tmp_path, load_s=200.0, now=now, window=window).waited_s(loads=4) >= 15 * 3600
    # Unless no night could hold them.
    assert Desk(tmp_path, load_s=599.0, now=now, window=Window.parse("06:40-07:00")).waited_s(
        loads=4
    ) == 0.0


def test_a_run_longer_than_the_window_is_never_begun(tmp_path: Path) -> None:
    desk = Desk(tmp_path, load_s=3700.0, window=Window.parse("03:00-04:00"))
    assert desk.over() == "a run takes 1 h 01 min, longer than the window 03:00-04:00 is open"


def test_a_wall_clock_that_is_set_moves_the_window_and_nothing_else(tmp_path: Path) -> None:
    class Corrected(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if len(self.slept) == 4:
                self.step(11 * 3600.0)

    desk = Desk(tmp_path, window=Window.parse("22:00-07:00"), left_s=7200.0)
    desk.clock.__class__ = Corrected
    assert desk.waited_s() < 3.0, "the window was not seen to open"
    desk.turn.pause("v1", 30.0)
    desk.clock.step(-5 * 3600.0)
    desk.clock.step(5 * 3600.0)
    assert 30.0 <= desk.waited_s() < 31.5
    assert desk.over() is None
