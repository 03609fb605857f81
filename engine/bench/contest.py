"""Who is timed: the engine in one configuration, or any other program that decodes greedily."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from engine.config import EngineConfig
from engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed generation. The first token comes from prefill; `decode_ns` covers the others."""

    tokens: tuple[int, ...]
    rounds: int  # target forwards after prefill
    prefill_ns: int
    decode_ns: int

    @property
    def ms_per_token(self) -> float:
        """Decode time per token, without prefill."""
        return self.decode_ns / max(1, len(self.tokens) - 1) / 1e6

    @property
    def tau(self) -> float:
        """Tokens that a target forward commits."""
        return (len(self.tokens) - 1) / self.rounds


class Contestant(Protocol):
    """A program that decodes `count` tokens after a prompt, greedily."""

    name: str

    def use_threads(self, threads: int) -> None:
        """Take this many threads from now on."""

    def decode(self, prompt: Sequence[int], count: int) -> Sample:
        """Generate; fewer than `count` tokens only if the text ended."""


class EngineContestant:
    """This engine in one configuration. Several may share the engine: it switches between them."""

    def __init__(self, name: str, engine: Engine, config: EngineConfig) -> None:
        self.name = name
        self._engine = engine
        self._config = config

    def use_threads(self, threads: int) -> None:
        """Take this many threads from now on."""
        self._config = replace(self._config, threads=threads)

    def decode(self, prompt: Sequence[int], count: int) -> Sample:
        """Generate with this contestant's configuration."""
        self._engine.reconfigure(self._config)
        tokens: list[int] = []
        rounds = -1
        started = first = now = time.perf_counter_ns()
        for commit in self._engine.generate(prompt, max_new_tokens=count):
            now = time.perf_counter_ns()
            first = first if tokens else now
            tokens += commit.tokens
            rounds += 1
        return Sample(tuple(tokens), rounds, first - started, now - first)
