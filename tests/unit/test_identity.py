"""A process is its pid, its start and its boot; a pid alone names nobody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from flywheel.box import identity
from flywheel.box.identity import Identity


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, deaf to TERM."""
    code = "import signal,time; signal.signal(15, signal.SIG_IGN); print(1, flush=True)"
    child = subprocess.Popen(
        [sys.executable, "-c", code + "; time.sleep(60)"],
        process_group=0,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    yield child
    child.kill()
    child.communicate()


def test_this_process_is_alive_and_its_namesakes_are_not() -> None:
    me = identity.current()
    assert identity.is_alive(me)
    assert not identity.is_alive(replace(me, start_ticks=me.start_ticks + 1))
    assert not identity.is_alive(replace(me, boot_id="another boot"))
    assert not identity.is_alive(None)
    assert identity.of(2**22 + 1) is None


def test_an_identity_survives_json_and_nonsense_is_none() -> None:
    me = identity.current()
    assert Identity.from_json(me.to_json()) == me
    for value in (None, 3, {}, {**me.to_json(), "pid": "1"}, {**me.to_json(), "pid": 1}):
        assert Identity.from_json(value) is None


def test_a_zombie_is_dead_but_known(sleeper: subprocess.Popen[bytes]) -> None:
    one = identity.of(sleeper.pid)
    assert one is not None
    os.kill(sleeper.pid, signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert identity.of(sleeper.pid) is None
    assert identity.of(sleeper.pid, zombie=True) == one
    assert identity.group_members(one) == ()


def test_a_group_is_ended_only_by_its_own_leader(sleeper: subprocess.Popen[bytes]) -> None:
    one = identity.of(sleeper.pid)
    assert one is not None
    assert identity.group_members(one) == (sleeper.pid,)
    assert identity.group_members(one, session=os.getsid(0)) == (sleeper.pid,)
    assert identity.group_members(one, session=2**22) == ()
    # The same pid as another process: nobody is touched.
    for other in (replace(one, start_ticks=one.start_ticks - 1), replace(one, boot_id="x")):
        assert not identity.signal_group(other, signal.SIGKILL)
        assert identity.end_group(other, 0.1)
    assert sleeper.poll() is None
    # The group is empty once its zombie leader is all that is left.
    assert identity.end_group(one, 0.2)
    assert sleeper.wait(5) == -signal.SIGKILL
