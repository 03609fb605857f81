"""What the width analysis is made from, whichever log it came out of. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prompt:
    """Counts of one prompt; `tokens` are those that its `rounds` committed in `decode_ns`.

    `offered[j]` rounds offered more than j drafts, `accepted[j]` accepted more; `reached[j]` had
    accepted j and offered one more, so that its fate was seen.
    """

    name: str
    category: str
    rounds: int
    tokens: int
    offered: tuple[int, ...]
    reached: tuple[int, ...]
    accepted: tuple[int, ...]
    decode_ns: int


@dataclass(frozen=True, slots=True)
class Costs:
    """Nanoseconds of one step by its rows; `draft_ns` is what a round takes beside it.

    `rough` names the row counts whose cost is a bound and no measurement.
    """

    step_ns: Mapping[int, float]
    draft_ns: float
    rough: tuple[int, ...] = ()

    def round_ns(self, width: int) -> float | None:
        """A round that offers `width` drafts; without drafts there is nothing to draft."""
        step = self.step_ns.get(width + 1)
        return None if step is None else step + (self.draft_ns if width else 0.0)


@dataclass(frozen=True, slots=True)
class Score:
    """What the draft head said of one offered slot that was reached, and what became of it."""

    position: int
    value: float
    accepted: bool


@dataclass(frozen=True, slots=True)
class Evidence:
    """One configuration's rounds. `score` names the head's word: confidence, margin or none.

    `policy` is fixed when every round offered the whole width; otherwise the rounds that reached a
    late position were picked, and no fixed width can be read off them. `target_top` holds, for each
    text, the target's largest probability at each token.
    """

    label: str
    sources: tuple[str, ...]
    width: int
    policy: str
    prompts: tuple[Prompt, ...]
    costs: Costs
    score: str = "none"
    scores: tuple[Score, ...] = ()
    target_top: tuple[tuple[float, ...], ...] = ()
    caveats: tuple[str, ...] = ()
