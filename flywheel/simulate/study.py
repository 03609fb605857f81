"""Which campaigns to simulate, and their summaries. The same seed gives the same campaigns."""

from __future__ import annotations

import os
import signal
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import numpy as np

from flywheel.simulate.box import BASE, BOXES, Machine
from flywheel.simulate.ours import Campaign
from flywheel.simulate.outcome import Outcome, Summary, summarise
from flywheel.simulate.peers import PEERS
from flywheel.simulate.truth import draw

OURS = {"cold": "ours, cold blocks", "hot": "ours, hot blocks", "fixed": "ours, always ABBA"}
POWERS = ("0.005", "0.01", "0.02", "0.03")
COINS = 4096


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a rule on a box with levers of one kind."""

    rule: str
    box: str = BASE.name
    truth: str = "mixed"

    @property
    def name(self) -> str:
        """The rule as printed."""
        return OURS[self.rule] if self.rule in OURS else PEERS[self.rule][0]


def rows(*, robust: bool = True) -> tuple[Row, ...]:
    """The table: peers and ours on the base box, our power by true gain, and other boxes."""
    out = [Row(rule, truth=t) for rule in (*PEERS, "cold", "hot") for t in ("mixed", "null")]
    out += [Row(rule, truth=p) for rule in ("paired4", "cold", "hot") for p in POWERS]
    if robust:
        others = [name for name in BOXES if name != BASE.name]
        out += [Row("cold", name, t) for name in others for t in ("mixed", "null")]
        out += [Row("fixed", "trend", "null"), Row("paired4", "drift", "null")]
        out += [Row("hot", name, t) for name in ("quiet", "noisy", "heavy", "wild")
                for t in ("mixed", "null")]
    return tuple(out)


def campaign(row: Row, seed: int, levers: int | None = None) -> Outcome:
    """One campaign. Rules on the same box with the same seed try the same levers."""
    box = BOXES[row.box]
    dice = np.random.default_rng([seed, zlib.crc32(f"{row.box} {row.truth}".encode())])
    truth = draw(row.truth, box, dice) if levers is None else draw(row.truth, box, dice, levers)
    machine = Machine(box, dice)
    if row.rule in PEERS:
        return PEERS[row.rule][1](machine, truth, dice)
    coins = (dice.random(COINS) < 0.5).tolist()
    return Campaign(machine, coins, hot=row.rule == "hot", fixed=row.rule == "fixed").run(truth)


def _one(task: tuple[Row, int]) -> Outcome:
    return campaign(*task)


def study(
    wanted: Iterable[Row],
    campaigns: int,
    *,
    seed: int = 1,
    processes: int = 1,
    done: Callable[[], None] = lambda: None,
) -> tuple[Summary, ...]:
    """A summary of each row over `campaigns` campaigns; `done` is called after each of them."""
    listed = tuple(wanted)
    tasks = [(row, seed + k) for row in listed for k in range(campaigns)]
    outcomes = _spread(tasks, processes) if processes > 1 else map(_one, tasks)
    out = []
    for row in listed:
        mine = []
        for _ in range(campaigns):
            mine.append(next(outcomes))
            done()
        out.append(summarise(row.name, row.box, row.truth, mine))
    return tuple(out)


def _spread(tasks: list[tuple[Row, int]], processes: int) -> Iterator[Outcome]:
    with pool(processes) as workers:
        yield from workers.map(_one, tasks)


@contextmanager
def pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Worker processes, which end with the block.

    Only the first Ctrl-C is answered: an end of theirs that is broken off waits for ever.
    """
    before = signal.getsignal(signal.SIGINT)

    def once(signum: int, frame: FrameType | None) -> None:
        signal.signal(signum, signal.SIG_IGN)
        (before if callable(before) else signal.default_int_handler)(signum, frame)

    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, once)
    try:
        with ProcessPoolExecutor(processes, initializer=_worker) as workers:
            yield workers
    finally:
        signal.signal(signal.SIGINT, before)


def _worker() -> None:
    """Begin a worker process."""
    os.nice(10)
    # Ctrl-C reaches the whole group; the parent alone answers it, when what is begun has ended.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
