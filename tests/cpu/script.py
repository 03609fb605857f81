"""A sampler that follows a script, so that a test decides what is drafted and what is accepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from engine.sampling import Sampler, Sampling


class Script(Sampler):
    """The target's token at every position comes from `text`, the drafter's from there or `wrong`.

    Positions in `wrong` are drafted as the token that stands there.
    """

    def __init__(self, text: Sequence[int], wrong: Mapping[int, int] | None = None) -> None:
        super().__init__(Sampling())
        self._text = text
        self._wrong = wrong or {}

    def choose(self, logits: Tensor, position: int) -> int:
        return self._text[position]

    def propose(self, logits: Tensor, position: int) -> int:
        return self._wrong.get(position, self._text[position])
