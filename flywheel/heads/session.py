"""The session gate of a campaign's heads: go on, at lower odds, or stop. Pure.

Its rule is fixed before the data, stored with the campaign and applied by the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GO, REPRICE, STOP = "go", "re-price", "stop"


@dataclass(frozen=True, slots=True)
class SessionRule:
    """After `after` decided heads the best of them must gain at least `go` to go on as planned.

    Between `stop` and `go` the odds of the heads to come are multiplied by `discount`; under
    `stop` no more of them are trained. Gains are those of tau, as fractions.
    """

    after: int = 4
    go: float = 0.01
    stop: float = -0.05
    discount: float = 0.5


@dataclass(frozen=True, slots=True)
class Outcome:
    """A decided head: its gain in tau where it was measured, and whether a gate failed."""

    name: str
    gain: float | None
    incorrect: bool


@dataclass(frozen=True, slots=True)
class Gate:
    """The word on the heads to come, and why."""

    word: str
    why: str


def gate(rule: SessionRule, outcomes: Sequence[Outcome]) -> Gate:
    """What the decided heads of a campaign allow for the next one."""
    if wrong := [o.name for o in outcomes if o.incorrect]:
        return Gate(STOP, f"{wrong[0]} changed a token")
    gains = [o.gain for o in outcomes if o.gain is not None]
    if len(gains) < rule.after:
        return Gate(GO, f"{len(gains)} of {rule.after} heads decided")
    best = max(gains)
    said = f"the best of {len(gains)} heads gains {best * 100:+.1f} %"
    if best >= rule.go:
        return Gate(GO, said)
    return Gate(REPRICE if best >= rule.stop else STOP, said)
