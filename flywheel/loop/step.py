"""What the plan can ask for: a block, a lever to close, a profile, a proposer, a stop. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flywheel.ledger.rows import RunRow
from flywheel.lever import Lever
from flywheel.statistics.block import CANDIDATE, INCUMBENT

# The arm of a screen's second candidate, and the slot of its load.
MATE = "C"
MATE_SLOT = 2


@dataclass(frozen=True, slots=True)
class Load:
    """One engine load of a block: its arms and the order in which they are measured."""

    slot: int
    arms: tuple[tuple[str, Mapping[str, Any]], ...]
    order: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mate:
    """The second candidate of a cold screen."""

    variant_id: str
    lever: Lever
    candidate: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Choice:
    """The terms by which a lever was chosen: its priority, and the next best by name and value."""

    value: float
    terms: Mapping[str, Any]
    runners_up: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class NextBlock:
    """A block to run. `new_variant` and `new_block` say which rows are still to be appended.

    `done` holds the runs that this block already has (after a crash, or between cold loads). A
    cold `screen` is A x1 x2 A: the lever's candidate, then its mate's, between two incumbents, of
    which the first is the run `opens_with` where an earlier screen has just measured it. `choice`
    is there when it was chosen among levers.
    """

    block_id: str
    variant_id: str
    purpose: str
    lever: Lever
    incumbent: Mapping[str, Any]
    candidate: Mapping[str, Any]
    hot: bool
    pattern: str
    seed: int
    number: int
    why: str
    new_variant: bool
    new_block: bool
    from_decision: int | None = None
    done: tuple[RunRow, ...] = ()
    screen: bool = False
    mate: Mate | None = None
    opens_with: str | None = None
    choice: Choice | None = None

    @property
    def null(self) -> bool:
        """The two arms are meant to be identical."""
        return self.lever.null and self.purpose != "anchor"

    def loads(self) -> tuple[Load, ...]:
        """The engine loads that are still to be run, in order."""
        arms = ((INCUMBENT, self.incumbent), (CANDIDATE, self.candidate))
        if self.hot:
            planned: tuple[Load, ...] = (Load(0, arms, tuple(self.pattern)),)
        else:
            by_name = dict(arms)
            slots = self.pattern
            if self.mate is not None:
                by_name[MATE] = self.mate.candidate
                slots = INCUMBENT + CANDIDATE + MATE + INCUMBENT
            planned = tuple(
                Load(i, ((name, by_name[name]),), (name, name)) for i, name in enumerate(slots)
            )
        taken = {run.slot for run in self.done}
        if self.opens_with is not None:
            taken.add(0)
        return tuple(load for load in planned if load.slot not in taken)


@dataclass(frozen=True, slots=True)
class PricedOut:
    """A lever to be closed without a run, for its ceiling.

    `rejected` when that is under the promotion bar; `inconclusive` when it is over the bar but
    under what this box could detect at the last block.
    """

    lever: Lever
    variant_id: str
    incumbent: Mapping[str, Any]
    candidate: Mapping[str, Any]
    why: str
    ending: str = "rejected"
    code: str = "priced_out"


@dataclass(frozen=True, slots=True)
class Prove:
    """A head that was measured: to be decided, after a proof in service if it is to be promoted."""

    variant_id: str
    lever: Lever


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing to run. `halt` says that a person has to look before anything else may run."""

    reason: str
    halt: bool = False


@dataclass(frozen=True, slots=True)
class PhaseChange:
    """The campaign enters a phase: why, and the decisions that this stands on."""

    phase: str
    why: str
    decisions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TakeProfile:
    """The incumbent is to be profiled, at a step of so many rows."""

    config: Mapping[str, Any]
    rows: int
    why: str


@dataclass(frozen=True, slots=True)
class AskProposer:
    """A proposer is to be asked for levers, by its name."""

    proposer: str
    why: str


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing can be done before that moment; `why` says what is waited for."""

    until_utc: str
    why: str


Step = NextBlock | PricedOut | Prove | PhaseChange | TakeProfile | AskProposer | Rest | Stop
