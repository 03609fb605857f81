"""How fast an answer came, and what its drafts were worth: for those who ask for `timings`."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from engine.engine import Commit

_MS = 1e-6


@dataclass(slots=True)
class Pace:
    """Sums over the commits of one answer. Position j counts rounds that went beyond j drafts."""

    cached: int = 0
    prefill_ns: int = 0
    tokens: int = 0
    by_rounds: int = 0  # of the tokens; the others came from prefill
    decode_ns: int = 0
    rounds: int = 0
    offered: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def hear(self, commit: Commit) -> None:
        """Add a commit."""
        self.tokens += len(commit.tokens)
        if commit.round is None:
            self.cached += commit.cached
            self.prefill_ns += commit.prefill_ns
            return
        self.rounds += 1
        self.by_rounds += len(commit.tokens)
        self.decode_ns += commit.round.time_ns
        self.offered = _added(self.offered, [1] * commit.round.offered)
        self.accepted = _added(
            self.accepted, [int(j < commit.round.accepted) for j in range(commit.round.offered)]
        )

    def __add__(self, other: Pace) -> Pace:
        """Both together."""
        return Pace(
            self.cached + other.cached,
            self.prefill_ns + other.prefill_ns,
            self.tokens + other.tokens,
            self.by_rounds + other.by_rounds,
            self.decode_ns + other.decode_ns,
            self.rounds + other.rounds,
            _added(self.offered, other.offered),
            _added(self.accepted, other.accepted),
        )

    @property
    def timings(self) -> dict[str, Any]:
        """Under llama.cpp's names where it has one. Speed is that of rounds alone."""
        seconds = self.decode_ns * 1e-9
        return {
            "cache_n": self.cached,
            "prompt_ms": round(self.prefill_ns * _MS, 3),
            "predicted_n": self.tokens,
            "predicted_ms": round(self.decode_ns * _MS, 3),
            "predicted_per_second": round(self.by_rounds / seconds, 3) if seconds else None,
            "draft_n": sum(self.offered),
            "draft_n_accepted": sum(self.accepted),
            "rounds": self.rounds,
            "offered_by_position": self.offered,
            "accepted_by_position": self.accepted,
        }


def _added(one: list[int], other: list[int]) -> list[int]:
    return [a + b for a, b in zip_longest(one, other, fillvalue=0)]
