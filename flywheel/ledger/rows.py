"""The ledger's rows as frozen objects, and the view that holds them all. Pure data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from flywheel.lever import Lever
from flywheel.ruler import Ruler
from flywheel.statistics.band import Band
from flywheel.statistics.block import BlockEstimate
from flywheel.statistics.campaign import Budget, Canaries, Settings, fold as fold_budget
from flywheel.statistics.decide import Rule
from flywheel.statistics.screen import Screened
from flywheel.sweep import Sweep


@dataclass(frozen=True, slots=True)
class RunRow:
    """A planned run and, once it has one, its terminal row (`outcome` is None before)."""

    id: str
    block_id: str
    slot: int
    created_utc: str
    outcome: str | None = None
    code: str = ""
    detail: str = ""
    started_utc: str = ""
    ended_utc: str = ""
    wall_s: float = 0.0
    log_sha256: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ScreenRow:
    """What one screen said about one variant."""

    block_id: str
    variant_id: str
    ruler_id: int
    source_sha256: str
    answer: Screened


@dataclass(frozen=True, slots=True)
class BlockRow:
    """A planned block, its runs, and its estimate or the reason why it is void.

    A `screen` has `answers` in the place of an estimate; `mate_id` is the other variant in it, and
    `opening` the earlier screen's closing load that it begins with in the place of one of its own.
    """

    serial: int
    id: str
    variant_id: str
    number: int
    hot: bool
    pattern: str
    seed: int
    why: str
    runs: tuple[RunRow, ...] = ()
    estimate: BlockEstimate | None = None
    ruler_id: int | None = None
    source_sha256: str | None = None
    void_code: str | None = None
    void_detail: str = ""
    screen: bool = False
    mate_id: str | None = None
    answers: tuple[ScreenRow, ...] = ()
    opening: RunRow | None = None

    @property
    def loads(self) -> tuple[RunRow, ...]:
        """The loads that it stands on: its own runs, after the one that it begins with."""
        return self.runs if self.opening is None else (self.opening, *self.runs)

    @property
    def open(self) -> bool:
        """Neither measured nor answered nor void."""
        return self.estimate is None and self.void_code is None and not self.answers


@dataclass(frozen=True, slots=True)
class HeadRow:
    """A draft head in the archive; `variant_id` is None for one that no campaign trained."""

    name: str
    variant_id: str | None
    weights_sha256: str
    card: Mapping[str, Any]
    created_utc: str


@dataclass(frozen=True, slots=True)
class StageRow:
    """A head that was put into service by a decision, or taken back at once; and the proof."""

    head: str
    decision: int
    outcome: str
    detail: str
    signature: Mapping[str, Any]
    created_utc: str


@dataclass(frozen=True, slots=True)
class PatchRow:
    """A gated patch: `revision` is the commit of its `diff` on `base`; `gates` what was found."""

    name: str
    variant_id: str
    outcome: str
    diff_sha256: str
    diff: str
    base: str
    revision: str
    base_source_sha256: str
    source_sha256: str
    gates: Mapping[str, Any]
    created_utc: str


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """A decision as recorded. `number` is its key; `mean`, `low`, `high` are log gains."""

    number: int
    variant_id: str
    ending: str
    code: str
    sentence: str
    null: bool
    n: int
    mean: float | None
    low: float | None
    high: float | None
    nu: float | None
    e_value: float
    alpha_t: float
    test: int | None
    promotions_before: int
    rule_version: str
    details: Mapping[str, Any]
    created_utc: str
    rule: Rule = field(default_factory=Rule)
    supersedes: int | None = None
    superseded_by: int | None = None

    @property
    def promoted(self) -> bool:
        """Whether the test was passed; for a canary this is the error that is counted."""
        return self.ending == "promoted"

    @property
    def band(self) -> Band | None:
        """The anytime band of the log gain; infinite ends where nothing is bounded."""
        if self.mean is None:
            return None
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        return Band(self.mean, low, high, self.n, self.nu or 0.0)


@dataclass(frozen=True, slots=True)
class VariantRow:
    """A lever against one incumbent, with its blocks and its standing decision."""

    id: str
    campaign_id: int
    lever: Lever
    purpose: str
    incumbent: Mapping[str, Any]
    candidate: Mapping[str, Any]
    from_decision: int | None
    predicted_gain: float
    why: str
    created_utc: str
    blocks: tuple[BlockRow, ...] = ()
    decision: DecisionRow | None = None
    screened: ScreenRow | None = None

    @property
    def waiting(self) -> bool:
        """It passed a screen and its confirmation has not begun."""
        return (
            self.decision is None
            and self.screened is not None
            and all(b.screen for b in self.blocks)
        )

    @property
    def null(self) -> bool:
        """The true effect is known to be 0."""
        return self.purpose in ("null", "canary")

    @property
    def measured(self) -> tuple[BlockRow, ...]:
        """Blocks with an estimate."""
        return tuple(b for b in self.blocks if b.estimate is not None)

    @property
    def estimates(self) -> tuple[BlockEstimate, ...]:
        """Their estimates."""
        return tuple(b.estimate for b in self.blocks if b.estimate is not None)

    @property
    def voids_in_a_row(self) -> int:
        """Void blocks since the last good one; a blocked run is not the lever's fault.

        Screens do not count: a lever whose screen is void goes on to its confirmation.
        """
        count = 0
        for block in reversed(self.blocks):
            if block.screen:
                continue
            if block.estimate is not None:
                break
            count += block.void_code not in (None, "blocked")
        return count


@dataclass(frozen=True, slots=True)
class SteeringRow:
    """What a person said of a lever: `word` is priced, deferred or reopened.

    `after_decision` is the newest decision when it was said; 0 before the first.
    """

    number: int
    lever_identity: str
    name: str
    word: str
    ceiling: float | None
    why: str
    after_decision: int
    created_utc: str


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """A campaign entered a phase; `after_decision` is the newest decision then, 0: none."""

    number: int
    campaign_id: int
    phase: str
    why: str
    after_decision: int
    finding: int
    created_utc: str


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """A profile of the incumbent, asked for by a phase: the residual on `top`, and what came of it.

    `failure` says why there is none; `levers` counts those that it led to.
    """

    number: int
    phase: int
    top: str
    levers: int
    failure: str
    created_utc: str


@dataclass(frozen=True, slots=True)
class ProposalRow:
    """A lever that nobody declared, its `origin` and what it came `because` of.

    The origin is `residual`, or `proposer:NAME`.
    """

    lever: Lever
    origin: str
    because: str
    created_utc: str


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """A proposer was asked; by a person where `phase` is None.

    `verdicts` say of each proposed lever whether it was admitted, or the reason why not. `retry_s`
    is the pause that a limited proposer asked for. The `transcript` lies beside the ledger.
    """

    number: int
    campaign_id: int
    phase: int | None
    proposer: str
    outcome: str
    detail: str
    retry_s: float | None
    admitted: int
    refused: int
    verdicts: tuple[Mapping[str, Any], ...]
    usage: Mapping[str, Any]
    transcript: str
    sha256: str
    wall_s: float
    created_utc: str


@dataclass(frozen=True, slots=True)
class ProposedSweepRow:
    """A sweep that nobody declared, its `origin` and what it came `because` of."""

    sweep: Sweep
    origin: str
    because: str
    created_utc: str


@dataclass(frozen=True, slots=True)
class ChoiceRow:
    """Why the plan chose a lever: its priority's value and terms, and the next best."""

    block_id: str
    value: float
    terms: Mapping[str, Any]
    runners_up: tuple[tuple[str, float], ...]
    why: str


@dataclass(frozen=True, slots=True)
class CampaignRow:
    """A declared epoch. `first_config` is the frozen anchor, `start_config` where it began."""

    id: int
    settings: Settings
    first_config: Mapping[str, Any]
    start_config: Mapping[str, Any]
    box: str
    created_utc: str
    ended: str | None = None


@dataclass(frozen=True, slots=True)
class FindingRow:
    """A numbered, dated sentence with its evidence."""

    number: int
    variant_id: str
    decision: int | None
    sentence: str
    evidence: Mapping[str, Any]
    created_utc: str


@dataclass(frozen=True, slots=True)
class View:
    """The whole history, in the order it was made."""

    campaigns: tuple[CampaignRow, ...] = ()
    variants: tuple[VariantRow, ...] = ()
    findings: tuple[FindingRow, ...] = ()
    rulers: Mapping[int, Ruler] = field(default_factory=dict)
    decisions: tuple[DecisionRow, ...] = ()
    steering: tuple[SteeringRow, ...] = ()
    phases: tuple[PhaseRow, ...] = ()
    profiles: tuple[ProfileRow, ...] = ()
    proposals: tuple[ProposalRow, ...] = ()
    attempts: tuple[AttemptRow, ...] = ()
    sweeps: tuple[ProposedSweepRow, ...] = ()
    heads: tuple[HeadRow, ...] = ()
    stages: tuple[StageRow, ...] = ()
    patches: tuple[PatchRow, ...] = ()

    @property
    def campaign(self) -> CampaignRow | None:
        """The newest campaign."""
        return self.campaigns[-1] if self.campaigns else None

    def variant(self, variant_id: str) -> VariantRow:
        """The variant of that id; KeyError when there is none."""
        for row in self.variants:
            if row.id == variant_id:
                return row
        raise KeyError(variant_id)

    def card_of(self, head: object) -> Mapping[str, Any] | None:
        """The card of an archived head; None for what is no name of one."""
        return next((row.card for row in self.heads if row.name == head), None)

    def block(self, block_id: str) -> BlockRow:
        """The block of that id; KeyError when there is none."""
        for row in self.blocks():
            if row.id == block_id:
                return row
        raise KeyError(block_id)

    def blocks(self) -> tuple[BlockRow, ...]:
        """Every block in the order planned."""
        found = (b for v in self.variants for b in v.blocks)
        return tuple(sorted(found, key=lambda b: b.serial))

    def of_campaign(self, campaign_id: int) -> tuple[VariantRow, ...]:
        """Its variants in the order opened."""
        return tuple(v for v in self.variants if v.campaign_id == campaign_id)

    def standing(self) -> tuple[DecisionRow, ...]:
        """Decisions that no later one supersedes, in the order their tests ended.

        A superseding decision keeps the place of the one it replaces: e-LOND is about order.
        """
        place: dict[int, int] = {}
        for row in self.decisions:
            place[row.number] = place.get(row.supersedes or 0, row.number)
        standing = [d for d in self.decisions if d.superseded_by is None]
        return tuple(sorted(standing, key=lambda d: place[d.number]))

    def budget(self, campaign_id: int) -> Budget:
        """The campaign's error budget as its decisions left it."""
        campaign = next(c for c in self.campaigns if c.id == campaign_id)
        mine = {v.id for v in self.of_campaign(campaign_id)}
        tests = (d for d in self.standing() if d.variant_id in mine and d.test is not None)
        return fold_budget(campaign.settings, (d.promoted for d in tests))

    def as_of(self, number: int) -> View:
        """The history as it stood right after a decision; variants keep what came later."""
        decided = tuple(
            replace(d, superseded_by=None) if (d.superseded_by or 0) > number else d
            for d in self.decisions
            if d.number <= number
        )
        last = max((self.variant(d.variant_id).campaign_id for d in decided), default=0)
        campaigns = tuple(c for c in self.campaigns if c.id <= last) or self.campaigns[:1]
        return replace(self, decisions=decided, campaigns=campaigns)

    def with_endings(self, endings: Mapping[int, str]) -> View:
        """The same history, had these decisions ended otherwise."""

        def renewed(row: DecisionRow | None) -> DecisionRow | None:
            return None if row is None else replace(row, ending=endings.get(row.number, row.ending))

        return replace(
            self,
            variants=tuple(replace(v, decision=renewed(v.decision)) for v in self.variants),
            decisions=tuple(d for d in map(renewed, self.decisions) if d is not None),
        )

    def canaries(self, campaign_id: int | None = None) -> Canaries:
        """Canaries promoted of canaries decided, in one campaign or in all."""
        decided = [
            v.decision
            for v in self.variants
            if v.purpose == "canary"
            and v.decision is not None
            and v.decision.ending != "void"
            and campaign_id in (None, v.campaign_id)
        ]
        return Canaries(sum(d.promoted for d in decided), len(decided))
