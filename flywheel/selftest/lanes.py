"""Experiments side by side, each lane a process of its own with an environment of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass

from flywheel.selftest.crash import Crash, crash
from flywheel.selftest.matrix import inject, named
from flywheel.selftest.scene import Missed
from flywheel.selftest.verdict import Verdict

LANES = 2
PATIENCE_S, SLOW_PATIENCE_S = 90.0, 400.0


def faults(names: Sequence[str]) -> Iterator[Verdict]:
    """The verdicts of these faults, two at a time, as they come."""
    # Slow ones first, so that they do not trail behind when everything else is done.
    names = sorted(names, key=lambda name: not named(name).slow)
    with _pool() as pool:
        waiting = {pool.submit(_one, name) for name in names}
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for one in done:
                yield one.result()


def _one(name: str) -> Verdict:
    fault = named(name)

    def late(*_: object) -> None:
        raise Missed(f"{name} did not come to an end")

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SLOW_PATIENCE_S if fault.slow else PATIENCE_S)
    try:
        return inject(fault)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


@dataclass(frozen=True, slots=True)
class Crashes:
    """Several crash tests, each on a ledger of its own."""

    kills: int
    lanes: tuple[Crash, ...]

    @property
    def good(self) -> bool:
        """Nothing was lost, doubled or left behind in any of them."""
        return all(lane.account.good for lane in self.lanes)

    def total(self, name: str) -> int:
        """The sum of one figure of the accounts."""
        return sum(int(getattr(lane.account, name)) for lane in self.lanes)


def crashes(kills: int, seed: int, tell: Callable[[int], None]) -> Crashes:
    """So many kills, spread over lanes; ``tell`` hears of each."""
    shares = [kills // LANES + (n < kills % LANES) for n in range(LANES)]
    with multiprocessing.get_context("spawn").Manager() as manager, _pool() as pool:
        told = manager.Queue()
        waiting: set[Future[Crash]] = {
            pool.submit(crash, share, seed + n, tell=told.put)
            for n, share in enumerate(shares)
            if share
        }
        done: set[Future[Crash]] = set()
        heard = 0
        while waiting:
            ended, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
            done |= ended
            while not told.empty():
                told.get()
                heard += 1
                tell(heard)
    found = sorted((one.result() for one in done), key=lambda lane: lane.seed)
    return Crashes(kills, tuple(found))


def _pool() -> ProcessPoolExecutor:
    lanes = min(LANES, max(1, os.cpu_count() or 1))
    return ProcessPoolExecutor(lanes, mp_context=multiprocessing.get_context("spawn"))
