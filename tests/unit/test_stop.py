"""A STOP file speaks to one daemon or to all; leftovers are known by identity, not by age."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from flywheel.box import identity
from flywheel.loop import stop


def test_a_request_reaches_its_daemon_and_no_other(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    me = identity.current()
    assert stop.requested(ledger) is None
    stop.request(ledger, me, now=False)
    asked = stop.requested(ledger)
    assert asked is not None
    assert (asked.now, asked.by_hand, asked.reason) == (False, False, "flywheel stop")
    other = replace(me, start_ticks=me.start_ticks - 1)
    assert stop.requested(ledger, other) is None
    stop.request(ledger, me, now=True)
    asked = stop.requested(ledger)
    assert asked is not None
    assert asked.now
    assert asked.reason == "flywheel stop --now"
    stop.clear(ledger)
    assert stop.requested(ledger) is None


def test_a_stale_request_is_cleared_and_a_live_daemons_is_not(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    me = identity.current()
    stop.request(ledger, replace(me, start_ticks=me.start_ticks - 1), now=True)
    stop.clear(ledger)
    assert not stop.path_for(ledger).exists()
    parent = identity.of(1) or me
    stop.request(ledger, me, now=True)
    stop.clear(ledger, parent if parent != me else None)
    assert stop.path_for(ledger).exists() == (parent != me)


def test_a_file_made_by_hand_concerns_everybody_and_stays(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    path = stop.path_for(ledger)
    for text, now in (("", False), ("now", True), ("please stop NOW\n", True), ("{}", False)):
        path.write_text(text)
        asked = stop.requested(ledger)
        assert asked is not None
        assert asked.by_hand
        assert asked.now is now
        stop.clear(ledger)
        assert path.exists()
    path.unlink()
    path.mkdir()
    asked = stop.requested(ledger)
    assert asked is not None
    assert not asked.now


def test_a_daemon_that_starts_keeps_a_request_that_was_just_made_to_it(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    me = identity.current()
    stop.request(ledger, me, now=False)
    stop.clear_stale(ledger)
    assert stop.requested(ledger) is not None
    stop.request(ledger, replace(me, start_ticks=me.start_ticks - 1), now=False)
    stop.clear_stale(ledger)
    assert not stop.path_for(ledger).exists()
    stop.path_for(ledger).touch()
    stop.clear_stale(ledger)
    assert stop.path_for(ledger).exists()


def test_a_pipe_of_that_name_is_a_request_and_is_not_waited_for(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    os.mkfifo(stop.path_for(ledger))
    asked = stop.requested(ledger)
    assert asked is not None
    assert asked.by_hand
    assert not asked.now
    stop.clear(ledger)
    stop.clear_stale(ledger)
    assert stop.path_for(ledger).exists()
