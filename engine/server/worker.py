"""One thread that owns the engine, and a short queue in front of it.

The engine holds one sequence at a time, and its thread settings belong to the thread that loaded
it: so this thread loads and generates, and everybody else waits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

from engine.engine import Commit
from engine.server.errors import busy, unavailable
from engine.stops import Delta, TextStream


@dataclass(frozen=True, slots=True)
class Step:
    """What one commit brought choice `index`."""

    index: int
    delta: Delta
    commit: Commit


Event = Step | BaseException
Deliver = Callable[[Event], None]


class Generation:
    """One choice to be generated. Text of a token in `stop_ids` is not shown."""

    def __init__(
        self, commits: Iterator[Commit], stream: TextStream, stop_ids: Collection[int] = ()
    ) -> None:
        self._commits = cast(Generator[Commit], commits)
        self._stream = stream
        self._stop_ids = stop_ids

    def next(self) -> tuple[Delta, Commit]:
        """The next commit and what it shows."""
        commit = next(self._commits)
        tokens = commit.tokens
        hidden = commit.finish == "stop" and tokens[-1] in self._stop_ids
        delta = self._stream.feed(tokens[:-1] if hidden else tokens, commit.finish)
        if hidden and delta.stop is None:
            delta = replace(delta, tokens=tokens)
        return delta, commit

    def close(self) -> None:
        """End the engine's work."""
        self._commits.close()


class Job:
    """A request's generations, one by one; `deliver` is called on the worker's thread."""

    def __init__(self, generations: Sequence[Generation], deliver: Deliver) -> None:
        self._generations = generations
        self._deliver = deliver
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Make the worker drop this job within one round."""
        self._cancelled.set()

    def fail(self, error: BaseException) -> None:
        """Tell whoever waits that nothing more will come."""
        self._deliver(error)

    def run(self) -> None:
        """Generate until the end, a stop string or a cancellation; errors are delivered."""
        try:
            for index, generation in enumerate(self._generations):
                self._run(index, generation)
        except Exception as error:
            self._deliver(error)
        finally:
            for generation in self._generations:
                generation.close()

    def _run(self, index: int, generation: Generation) -> None:
        finish = None
        while finish is None and not self._cancelled.is_set():
            delta, commit = generation.next()
            self._deliver(Step(index, delta, commit))
            finish = delta.finish
        generation.close()


class Worker:
    """Runs `prepare` once and then one job after the other, at most `waiting_limit` waiting."""

    def __init__(self, prepare: Callable[[], bool], waiting_limit: int) -> None:
        self._prepare = prepare
        self._waiting_limit = waiting_limit
        self._waiting: deque[Job] = deque()
        self._errands: deque[Callable[[], None]] = deque()
        self._current: Job | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)

    def start(self) -> None:
        """Begin to prepare."""
        self._thread.start()

    @property
    def running(self) -> int:
        """Jobs being generated: 0 or 1."""
        return int(self._current is not None)

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""
        return len(self._waiting)

    def submit(self, job: Job) -> None:
        """Queue a job; RequestError when the queue is full or the server is closing."""
        with self._changed:
            if self._closed:
                raise unavailable("The server is shutting down.")
            if self.running + self.waiting > self._waiting_limit:
                raise busy(self.waiting)
            self._waiting.append(job)
            self._changed.notify()

    def between(self, errand: Callable[[], None]) -> None:
        """Do something on the engine's thread as soon as nothing is being generated."""
        with self._changed:
            self._errands.append(errand)
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """Forget a job that waits, or stop one that runs. Any other is left alone."""
        job.cancel()
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)

    def close(self) -> None:
        """Take no more jobs and end those there are, telling them why."""
        with self._changed:
            self._closed = True
            jobs = [*self._waiting, *([self._current] if self._current else [])]
            self._waiting.clear()
            self._changed.notify()
        for job in jobs:
            job.cancel()
            job.fail(unavailable("The server is shutting down."))

    def join(self, timeout_s: float) -> bool:
        """Whether the thread has ended within `timeout_s`."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        if not self._prepare():
            return
        while (job := self._next()) is not None:
            if not isinstance(job, Job):
                job()
                continue
            try:
                job.run()
            finally:
                with self._changed:
                    self._current = None

    def _next(self) -> Job | Callable[[], None] | None:
        with self._changed:
            while not (self._waiting or self._errands or self._closed):
                self._changed.wait()
            if self._closed:
                return None
            if self._errands:
                return self._errands.popleft()
            self._current = self._waiting.popleft()
            return self._current
