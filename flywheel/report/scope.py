"""Which part of the history a report is about: the newest campaign, or all since a moment. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from flywheel.ledger.rows import BlockRow, CampaignRow, DecisionRow, RunRow, VariantRow, View
from flywheel.report.trace import ended


@dataclass(frozen=True, slots=True)
class Scope:
    """The newest campaign as a whole; with `since_utc`, what ended since then in any campaign."""

    view: View
    since_utc: str | None = None

    @property
    def campaign(self) -> CampaignRow:
        """The newest campaign."""
        found = self.view.campaign
        assert found is not None, "a report needs a campaign"
        return found

    def variants(self) -> tuple[VariantRow, ...]:
        """Variants with a decision or a block in the period, in the order opened."""
        if self.since_utc is None:
            return self.view.of_campaign(self.campaign.id)
        return tuple(v for v in self.view.variants if self.decided(v) or self.blocks(v))

    def blocks(self, variant: VariantRow) -> tuple[BlockRow, ...]:
        """Its blocks that ended in the period."""
        since = self.since_utc
        return tuple(b for b in variant.blocks if since is None or ended(b) >= since)

    def decided(self, variant: VariantRow) -> DecisionRow | None:
        """Its standing decision, if made in the period."""
        found = variant.decision
        if found is None or (self.since_utc is not None and found.created_utc < self.since_utc):
            return None
        return found

    def decisions(self) -> tuple[tuple[VariantRow, DecisionRow], ...]:
        """Variants decided in the period, in the order of their decisions."""
        pairs = [(v, d) for v in self.variants() if (d := self.decided(v)) is not None]
        return tuple(sorted(pairs, key=lambda pair: pair[1].number))

    def runs(self) -> tuple[RunRow, ...]:
        """Runs of those blocks that have ended, in the order planned."""
        blocks = sorted((b for v in self.variants() for b in self.blocks(v)),
                        key=lambda b: b.serial)
        return tuple(r for b in blocks for r in b.runs if r.outcome is not None)
