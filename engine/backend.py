"""What an engine asks of whatever computes: states, prefill, and rounds that commit tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from engine.config import EngineConfig
from engine.errors import NumericsError
from engine.geometry import Geometry
from engine.prefix import Memory, Passage
from engine.sampling import Sampler


class Verified(NamedTuple):
    """What one round made final."""

    tokens: list[int]
    confidence: tuple[float, ...]  # of each draft that was offered
    hits: int  # offered drafts that the target confirmed


class Backend(Protocol):
    """One model in one configuration. States belong to the backend that made them."""

    geometry: Geometry
    config: EngineConfig  # as resolved for the model and the machine

    @property
    def drafts(self) -> bool:
        """Whether rounds may draft."""

    def new_state(self) -> Memory:
        """An empty state."""

    def prefill(
        self,
        state: Memory,
        prompt: Sequence[int],
        passage: Passage | None = None,
        *,
        drafting: bool = True,
    ) -> Tensor:
        """Commit what `state` does not hold of `prompt` yet, leaving its chunks in `passage`.

        Returns float32 logits [1, vocab] after the last token, on the host. Without `drafting` the
        state can never draft.
        """

    def forward(self, state: Memory, ids: Sequence[int], *, keep: int) -> Tensor:
        """Float32 logits [rows, vocab] after each of up to eight tokens that follow the state's.

        The first `keep` of them are committed, without the draft head's knowledge.
        """

    def round(
        self, state: Memory, sampler: Sampler, token: int, room: int, *, drafting: bool = True
    ) -> Verified:
        """Draft after `token`, verify at most `room` tokens, and commit the confirmed ones.

        Raises NumericsError when the logits stop being finite.
        """


def finite(logits: Tensor) -> Tensor:
    """`logits`, or NumericsError when any is not finite."""
    if not math.isfinite(logits.sum()):
        raise NumericsError(
            "The model produced logits that are not finite; the checkpoint is suspect."
        )
    return logits
