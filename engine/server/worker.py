"""One thread that owns the engine, the jobs that it advances together, and a queue before it.

The thread settings of an engine belong to the thread that loaded it: so this thread loads and
generates, and everybody else waits. A free place goes to the job that has the fewest, of several
to the oldest: a request for many choices never keeps others out.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from engine.config import EngineConfig
from engine.engine import Commit
from engine.errors import EngineError
from engine.sampling import Sampling
from engine.server.doubt import Doubt
from engine.server.errors import busy, engine_fault, unavailable
from engine.stops import Delta, TextStream

log = logging.getLogger("engine.server")

_MEMORY = 0.8  # how much of the average time of a job is remembered at each new one
_LONGEST_WAIT_S = 60
_MOST_SAID = 300  # characters of an error in the line of a fault


class Generates(Protocol):
    """The part of an engine that serving needs; `engine.batch.Batch` is one."""

    @property
    def config(self) -> EngineConfig:
        """What it does."""

    def switched(self, config: EngineConfig) -> Generates:
        """The same weights under another configuration; ConfigError where that cannot be."""

    def check(self, prompt: Sequence[int], max_new_tokens: int, sampling: Sampling) -> None:
        """Raise what `begin` would."""

    def begin(
        self,
        prompt: Sequence[int],
        *,
        max_new_tokens: int,
        sampling: Sampling | None = None,
        stop_ids: Collection[int] = (),
    ) -> Any:
        """A generation, before any work."""

    def advance(self, generations: Sequence[Any]) -> list[tuple[Any, Commit | Exception]]:
        """One turn for all of them: what each committed, or why it failed.

        An exception is a fault of the engine itself.
        """


@dataclass(frozen=True, slots=True)
class Step:
    """What one commit brought choice `index`."""

    index: int
    delta: Delta
    commit: Commit


Event = Step | BaseException
Deliver = Callable[[Event], None]
Begin = Callable[[Generates], Any]
Swap = Callable[[Generates], Generates]


class Choice:
    """One choice to be generated. Text of a token in `stop_ids` is not shown."""

    def __init__(self, begin: Begin, stream: TextStream, stop_ids: Collection[int] = ()) -> None:
        self.begin = begin
        self.generation: Any = None  # once it has a place
        self.heard = False
        self._stream = stream
        self._stop_ids = stop_ids

    def hear(self, commit: Commit) -> Delta:
        """What a commit shows."""
        self.heard = True
        tokens = commit.tokens
        hidden = commit.finish == "stop" and tokens[-1] in self._stop_ids
        delta = self._stream.feed(tokens[:-1] if hidden else tokens, commit.finish)
        return replace(delta, tokens=tokens) if hidden and delta.stop is None else delta


class Job:
    """A request's choices; `deliver` is called on the worker's thread.

    A choice begins once its predecessor has spoken, when the beginning of a prompt that they share
    is remembered.
    """

    def __init__(self, choices: Sequence[Choice], deliver: Deliver) -> None:
        self.active: list[tuple[int, Choice]] = []
        self.began_s: float | None = None
        self.error: BaseException | None = None  # what it failed with
        self._waiting = list(enumerate(choices))[::-1]
        self._deliver = deliver
        self._over = threading.Event()

    @property
    def over(self) -> bool:
        """Whether nothing is left to do, for whatever reason."""
        return self._over.is_set() or not (self.active or self._waiting)

    @property
    def ended(self) -> bool:
        """Whether it came to an end of its own, good or bad: not where nobody listened any more."""
        return self.error is not None or not (self.active or self._waiting)

    @property
    def ready(self) -> bool:
        """Whether another choice may begin."""
        return bool(self._waiting) and all(choice.heard for _, choice in self.active)

    def start(self, engine: Generates) -> None:
        """Begin the next choice."""
        self.began_s = self.began_s or time.monotonic()
        index, choice = self._waiting.pop()
        choice.generation = choice.begin(engine)
        self.active.append((index, choice))

    def cancel(self) -> None:
        """Nobody listens: the worker drops this job within a turn."""
        self._over.set()

    def fail(self, error: BaseException) -> None:
        """Tell whoever waits that nothing more will come."""
        if not self._over.is_set():
            self.error = error
            self._over.set()
            self._deliver(error)

    def hear(self, index: int, choice: Choice, outcome: Commit | Exception) -> None:
        """Take up what a turn brought one choice."""
        if isinstance(outcome, Exception):
            self.fail(outcome)
            return
        try:
            delta = choice.hear(outcome)
        except Exception as error:
            self.fail(error)
            return
        if not self._over.is_set():
            self._deliver(Step(index, delta, outcome))
        if delta.finish is not None:
            self.active.remove((index, choice))


class Worker:
    """Advances at most `capacity` choices at once, with at most `waiting_limit` jobs waiting.

    `prepare` loads an engine, or returns None when that is no use. It is called again after a
    fault of the engine, which ends every job that had begun; those that wait are kept. Jobs that
    fail by themselves are such a fault once there are too many in a row.
    """

    def __init__(
        self, prepare: Callable[[], Generates | None], *, capacity: int, waiting_limit: int
    ) -> None:
        self._prepare = prepare
        self._capacity = capacity
        self._waiting_limit = waiting_limit
        self._jobs: list[Job] = []  # in the order of their arrival
        self._swap: Swap | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._job_s = 0.0  # a moving average
        self.faults = 0
        self.fault_row = 0  # faults since a job last came to its end
        self._doubt = Doubt()

    def start(self) -> None:
        """Begin to prepare."""
        self._thread.start()

    @property
    def running(self) -> int:
        """Jobs that have begun."""
        return sum(job.began_s is not None for job in self._jobs)

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""
        return sum(job.began_s is None for job in self._jobs)

    @property
    def sequences(self) -> int:
        """Choices that advance together."""
        return sum(len(job.active) for job in self._jobs)

    def submit(self, job: Job) -> None:
        """Queue a job; RequestError when the queue is full or the server is closing."""
        with self._changed:
            if self._closed:
                raise unavailable("The server is shutting down.")
            if len(self._jobs) >= self._capacity + self._waiting_limit:
                raise busy(self.waiting, self._wait_s())
            self._jobs.append(job)
            self._changed.notify()

    def swap(self, swap: Swap) -> None:
        """Go on with another engine once what has begun is over; nothing begins before.

        `swap` is called on the engine's thread with the old one. A later call replaces this one.
        """
        with self._changed:
            self._swap = swap
            self._changed.notify()

    def _wait_s(self) -> int:
        """Seconds until a place in the queue is likely to be free."""
        return min(_LONGEST_WAIT_S, max(1, math.ceil(self._job_s / self._capacity)))

    def cancel(self, job: Job) -> None:
        """Drop a job, at once if it waits and within a turn if it has begun."""
        job.cancel()
        with self._changed:
            if job in self._jobs and job.began_s is None:
                self._jobs.remove(job)
            self._changed.notify()

    def close(self) -> None:
        """Take no more jobs and end those there are, telling them why."""
        with self._changed:
            self._closed = True
            jobs, self._jobs = self._jobs, []
            self._changed.notify()
        for job in jobs:
            job.fail(unavailable("The server is shutting down."))

    def join(self, timeout_s: float) -> bool:
        """Whether the thread has ended within `timeout_s`."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # ---------------------------------------------------------------- the thread

    def _work(self) -> None:
        again = True
        while again:
            engine = self._prepare()
            again = engine is not None and self._serve(engine)
            del engine  # its memory is needed for the next one
        self.close()

    def _serve(self, engine: Generates) -> bool:
        """Advance jobs until the end of the server (False) or a fault of the engine (True)."""
        while not self._closed:
            taken = self._taken(engine)
            if not taken:
                engine = self._swapped(engine)
                continue
            places = {id(choice.generation): (job, i, choice) for job, i, choice in taken}
            try:
                outcomes = engine.advance([choice.generation for _, _, choice in taken])
            except BaseException as error:  # a panic of an extension is no Exception
                self._broken(error)
                return True
            for generation, outcome in outcomes:
                job, index, choice = places[id(generation)]
                job.hear(index, choice, outcome)
            if (fault := self._doubted()) is not None:
                self._broken(fault)
                return True
        return False

    def _doubted(self) -> EngineError | None:
        """The fault that the jobs amount to which are over by now."""
        with self._changed:
            for job in self._jobs:
                if job.over and job.ended:
                    self._doubt = self._doubt.after(job.error)
        return self._doubt.fault

    def _taken(self, engine: Generates) -> list[tuple[Job, int, Choice]]:
        """The choices of the next turn; waits for some. None at the end, and before a swap."""
        with self._changed:
            while not self._closed:
                self._sweep()
                if self._swap is None:
                    self._fill(engine)
                taken = [(job, i, choice) for job in self._jobs for i, choice in job.active]
                if taken or self._swap is not None:
                    return taken
                self._changed.wait()
        return []

    def _swapped(self, engine: Generates) -> Generates:
        """The engine to go on with."""
        with self._changed:
            swap, self._swap = self._swap, None
        return engine if swap is None else swap(engine)

    def _sweep(self) -> None:
        """Forget the jobs that are over."""
        for job in self._jobs:
            if job.over and job.began_s is not None:
                # What leaves the engine in doubt is no sign that it was healed.
                self.fault_row = self.fault_row if self._doubt.row else 0
                spent_s = time.monotonic() - job.began_s
                self._job_s = _MEMORY * self._job_s + (1 - _MEMORY) * spent_s
        self._jobs = [job for job in self._jobs if not job.over]

    def _fill(self, engine: Generates) -> None:
        """Give free places to those who may begin."""
        while self.sequences < self._capacity:
            ready = [job for job in self._jobs if job.ready and not job.over]
            if not ready:
                return
            job = min(ready, key=lambda job: len(job.active))
            try:
                job.start(engine)
            except BaseException as error:
                job.fail(error)

    def _broken(self, error: BaseException) -> None:
        """End every job that had begun."""
        with self._changed:
            self.faults += 1
            self.fault_row += 1
            self._doubt = Doubt()
            begun = [job for job in self._jobs if job.began_s is not None]
            self._jobs = [job for job in self._jobs if job.began_s is None]
        log.error(
            "Engine fault %d ended %d answers: %s; the engine is loaded again.",
            self.faults,
            len(begun),
            in_one_line(error),
            exc_info=error,
        )
        for job in begun:
            job.fail(engine_fault())


def in_one_line(error: BaseException) -> str:
    """An exception's kind and words without line ends, cut where nobody reads on."""
    said = " ".join(f"{type(error).__name__}: {error}".split())
    return said if len(said) <= _MOST_SAID else said[: _MOST_SAID - 3] + "..."
