"""Who belongs to a run, and what becomes of those that SIGKILL does not end."""

from __future__ import annotations

import signal

from flywheel.box.identity import Identity, Process, family_of
from flywheel.guard.victim import bury

BOOT = "boot"
ENGINE = Identity(100, 1000, BOOT)
SUPERVISOR = Identity(90, 900, BOOT)


def table(*rows: tuple[int, int, int, int, int, str]) -> dict[int, Process]:
    """Rows of pid, parent, group, session, start, state."""
    return {
        pid: Process(pid, state, parent, group, session, start)
        for pid, parent, group, session, start, state in rows
    }


PROCESSES = table(
    (1, 0, 1, 1, 1, "S"),
    (90, 1, 90, 90, 900, "S"),  # the supervisor
    (91, 90, 91, 91, 910, "S"),  # its guard
    (100, 90, 100, 90, 1000, "R"),  # the engine
    (101, 100, 100, 90, 1001, "S"),  # its child
    (102, 101, 102, 102, 1002, "S"),  # a grandchild in a session of its own
    (103, 102, 103, 103, 1003, "S"),  # and that one's child
    (104, 90, 104, 104, 1004, "S"),  # an orphan that the supervisor inherited
    (105, 1, 105, 90, 1005, "S"),  # an orphan in the supervisor's session
    (106, 100, 100, 90, 1006, "Z"),  # dead already
    (200, 1, 200, 200, 50, "S"),  # somebody else
)


def pids(*found: Process) -> list[int]:
    return sorted(one.pid for one in found)


def test_a_run_is_its_group_and_all_that_descends_from_the_engine() -> None:
    assert pids(*family_of(PROCESSES, ENGINE)) == [100, 101, 102, 103]


def test_a_supervisor_of_its_own_session_finds_the_orphans_too() -> None:
    found = family_of(PROCESSES, ENGINE, SUPERVISOR, spare=(91,))
    assert pids(*found) == [100, 101, 102, 103, 104, 105]


def test_the_orphans_of_a_dead_engine_are_still_its_run() -> None:
    rest = {pid: one for pid, one in PROCESSES.items() if pid not in (100, 106)}
    assert pids(*family_of(rest, ENGINE)) == [101, 102, 103]
    assert pids(*family_of(rest, ENGINE, SUPERVISOR, spare=(91,))) == [101, 102, 103, 104, 105]


def test_a_reused_pid_ties_nobody() -> None:
    younger = {**PROCESSES, 100: Process(100, "S", 1, 100, 100, 5000)}
    assert family_of(younger, ENGINE) == ()
    # A group older than its alleged leader is another's.
    older = table((300, 1, 100, 90, 7, "S"))
    assert family_of(older, ENGINE) == ()


class Kernel:
    """Processes that die of SIGKILL, but for those in uninterruptible sleep."""

    def __init__(self, *pids: int, asleep: tuple[int, ...] = ()) -> None:
        self.alive = {Identity(pid, 1, BOOT) for pid in pids}
        self.asleep = asleep
        self.now_s = 0.0
        self.to_fork: list[int] = []

    def members(self) -> list[Identity]:
        return sorted(self.alive, key=lambda one: one.pid)

    def send(self, process: Identity, signum: int) -> bool:
        assert signum == signal.SIGKILL
        if process not in self.alive:
            return False
        if self.to_fork:
            self.alive.add(Identity(self.to_fork.pop(), 2, BOOT))
        if process.pid not in self.asleep:
            self.alive.discard(process)
        return True

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def bury(self) -> tuple[int, tuple[int, ...]]:
        done = bury(
            self.members, self.send, patience_s=3.0, clock_s=lambda: self.now_s, sleep=self.sleep
        )
        return done.killed, done.stuck


def test_whoever_is_forked_during_the_kill_dies_as_well() -> None:
    kernel = Kernel(5, 6)
    kernel.to_fork = [7, 8]
    assert kernel.bury() == (4, ())
    assert not kernel.alive


def test_a_process_in_uninterruptible_sleep_is_reported_and_not_waited_for() -> None:
    kernel = Kernel(5, 6, 7, asleep=(6,))
    assert kernel.bury() == (3, (6,))
    assert 3.0 <= kernel.now_s < 3.1


def test_nobody_to_bury_is_no_work() -> None:
    assert Kernel().bury() == (0, ())
