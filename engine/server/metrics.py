"""Counters of a server since its start, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Info, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from engine.engine import Commit
from engine.server.worker import Deliver, Event, Step, Worker

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_NS = 1e-9


class Metrics:
    """All that /metrics shows. Ratios are over the whole life of the server."""

    def __init__(self, worker: Worker) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "Requests that were queued.")
        self.errors = self._counter("errors", "Requests that were answered with an error.")
        self._prompt = self._counter("prompt_tokens", "Tokens of prompts.")
        self._cached = self._counter("cached_prompt_tokens", "Those that were remembered.")
        self._completion = self._counter("completion_tokens", "Tokens that were generated.")
        self._prefill = self._counter("prefill_seconds", "Time spent on prompts.")
        self._decode = self._counter("decode_seconds", "Time spent in rounds.")
        self._verifies = self._counter("verifies", "Rounds of one draft and one verify.")
        self._drafted = self._counter("draft_tokens", "Drafts offered to the target.")
        self._accepted = self._counter("accepted_draft_tokens", "Drafts that it confirmed.")
        self._rounds = self._counter("round_tokens", "Tokens that rounds committed.")
        self._gauge("requests_running", "Requests being generated.", lambda: worker.running)
        self._gauge("sequences", "Replies that advance together.", lambda: worker.sequences)
        self._gauge(
            "engine_faults",
            "Faults of the engine, each healed by a new load.",
            lambda: worker.faults,
        )
        self._gauge("queue_depth", "Requests that wait.", lambda: worker.waiting)
        self._ratio("decode_tokens_per_second", "Speed of rounds.", self._rounds, self._decode)
        self._ratio("tokens_per_verify", "Tokens a round.", self._rounds, self._verifies)
        self._ratio("prefix_cache_hit_ratio", "Part remembered.", self._cached, self._prompt)
        self._engine = Info("flywheel_engine", "What is served.", registry=self.registry)

    def describe(self, **labels: str) -> None:
        """Name what is served."""
        self._engine.info(labels)

    def text(self) -> bytes:
        """The page."""
        return generate_latest(self.registry)

    def watching(self, deliver: Deliver, prompts: Sequence[int]) -> Deliver:
        """`deliver`, counting on the way; `prompts` are the lengths of each choice's prompt."""

        def counted(event: Event) -> None:
            if isinstance(event, Step):
                self._count(event.commit, prompts[event.index])
            deliver(event)

        return counted

    def _count(self, commit: Commit, prompt: int) -> None:
        self._completion.inc(len(commit.tokens))
        if commit.round is None:
            self._prompt.inc(prompt)
            self._cached.inc(commit.cached)
            self._prefill.inc(commit.prefill_ns * _NS)
            return
        self._decode.inc(commit.round.time_ns * _NS)
        self._verifies.inc()
        self._drafted.inc(commit.round.offered)
        self._accepted.inc(commit.round.accepted)
        self._rounds.inc(len(commit.tokens))

    def _counter(self, name: str, what: str) -> Counter:
        return Counter(f"flywheel_{name}", what, registry=self.registry)

    def _gauge(self, name: str, what: str, read: Callable[[], float]) -> None:
        Gauge(f"flywheel_{name}", what, registry=self.registry).set_function(read)

    def _ratio(self, name: str, what: str, above: Counter, below: Counter) -> None:
        def read() -> float:
            total = _value(below)
            return _value(above) / total if total else 0.0

        self._gauge(name, what, read)


def _value(counter: Counter) -> float:
    return next(s.value for m in counter.collect() for s in m.samples if s.name.endswith("_total"))
