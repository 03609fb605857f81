"""Waiting that listens, and slow work that yields."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from clocks import FakeClock

from flywheel.box import identity
from flywheel.box.clock import SystemClock
from flywheel.loop import stop
from flywheel.loop.wishes import POLL_S, Wish, Wishes


def slowly(word: str) -> str:
    time.sleep(0.3)
    return word


def test_a_wait_sleeps_in_slices_and_ends_on_time(tmp_path: Path) -> None:
    clock = FakeClock()
    assert Wishes(tmp_path / "l.db", clock).wait(10.0) is None
    assert clock.at_s == pytest.approx(110.0)
    assert max(clock.slept) <= POLL_S


def test_a_wish_ends_a_wait_at_the_next_slice(tmp_path: Path) -> None:
    class Pressed(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if self.at_s >= 103.0:
                wishes.interrupt("Ctrl-C")

    clock = Pressed()
    wishes = Wishes(tmp_path / "l.db", clock)
    wish = wishes.wait(3600.0)
    assert wish is not None
    assert wish.reason == "Ctrl-C"
    assert clock.at_s <= 103.0 + POLL_S


def test_a_wait_ends_with_the_time_budget(tmp_path: Path) -> None:
    clock = FakeClock()
    wish = Wishes(tmp_path / "l.db", clock, deadline_s=105.0).wait(3600.0)
    assert wish is not None
    assert wish.code == "budget_spent"


def test_slow_work_gives_its_result_or_its_error(tmp_path: Path) -> None:
    wishes = Wishes(tmp_path / "l.db", SystemClock())
    assert wishes.during(lambda: 7) == 7

    def fails() -> int:
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError, match="a bug"):
        wishes.during(fails)


def test_slow_work_is_left_behind_for_a_person_but_not_for_the_budget(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    wishes = Wishes(ledger, SystemClock(), deadline_s=0.0)
    assert wishes.during(lambda: slowly("entered")) == "entered"
    never = threading.Event()
    stop.request(ledger, identity.current(), now=False)
    began = time.monotonic()
    wish = wishes.during(lambda: never.wait(30.0))
    assert isinstance(wish, Wish)
    assert wish.reason == "flywheel stop"
    assert time.monotonic() - began < 2.0
    never.set()


def test_work_that_is_nearly_done_is_waited_for(tmp_path: Path) -> None:
    wishes = Wishes(tmp_path / "l.db", SystemClock())
    wishes.interrupt("Ctrl-C")
    assert wishes.during(lambda: slowly("done")) == "done"
