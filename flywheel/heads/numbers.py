"""What the ledger knows of a head's acceptance, as exact fractions. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from flywheel.ledger.rows import BlockRow, DecisionRow, VariantRow, View
from flywheel.statistics.block import PromptRounds

STOCK = "stock"  # the head that came with the checkpoint


@dataclass(frozen=True, slots=True)
class Taus:
    """Tau of one head: mean of the prompts' own ratios, over all and by category."""

    suite: Fraction
    categories: Mapping[str, Fraction]
    held_out: Fraction | None
    held_out_categories: Mapping[str, Fraction]


@dataclass(frozen=True, slots=True)
class Measured:
    """One head beside its incumbent, on the same prompts in the same load."""

    block: BlockRow
    incumbent: str
    rows: tuple[PromptRounds, ...]

    @property
    def candidate(self) -> Taus:
        """The head's own."""
        return _taus(self.rows, lambda r: Fraction(r.made, r.candidate))

    @property
    def before(self) -> Taus:
        """The incumbent's."""
        return _taus(self.rows, lambda r: Fraction(r.made, r.incumbent))


@dataclass(frozen=True, slots=True)
class Standing:
    """A head of the archive, what it was measured at, and what was decided."""

    name: str
    variant: VariantRow | None
    measured: Measured | None
    decision: DecisionRow | None
    stage: str | None  # live, rolled_back, or None

    @property
    def status(self) -> str:
        """One word."""
        if self.stage is not None:
            return "live" if self.stage == "live" else "rolled back"
        if self.decision is not None:
            return self.decision.ending
        return "untried" if self.measured is None else "undecided"


def head_of(config: Mapping[str, object]) -> str:
    """The name of the head in a configuration."""
    return str(config.get("head") or STOCK)


def standings(view: View) -> tuple[Standing, ...]:
    """Every head of the ledger, in the order archived."""
    stages = {s.head: s.outcome for s in view.stages}
    by_head = {head_of(v.candidate): v for v in view.variants if v.lever.kind == "head"}
    out = []
    for row in view.heads:
        variant = by_head.get(row.name)
        out.append(
            Standing(
                row.name, variant, None if variant is None else measured(variant),
                None if variant is None else variant.decision, stages.get(row.name),
            )
        )  # fmt: skip
    return tuple(out)


def measured(variant: VariantRow) -> Measured | None:
    """The newest measurement of a head; None before there is one."""
    for block in reversed(variant.measured):
        assert block.estimate is not None
        if block.estimate.by_prompt:
            return Measured(block, head_of(variant.incumbent), block.estimate.by_prompt)
    return None


def stock_beside(view: View, mine: Measured) -> Taus | None:
    """The stock head's taus under the very ruler and code of `mine`; None if it has none there."""
    for variant in view.variants:
        other = measured(variant) if variant.lever.kind == "head" else None
        if other is None or other.incumbent != STOCK:
            continue
        same = (other.block.ruler_id, other.block.source_sha256)
        if same == (mine.block.ruler_id, mine.block.source_sha256):
            return other.before
    return None


def _taus(rows: Iterable[PromptRounds], ratio: Callable[[PromptRounds], Fraction]) -> Taus:
    suite: dict[str, list[Fraction]] = defaultdict(list)
    held: dict[str, list[Fraction]] = defaultdict(list)
    for row in rows:
        (held if row.held_out else suite)[row.category].append(ratio(row))
    every = [t for taus in suite.values() for t in taus]
    unseen = [t for taus in held.values() for t in taus]
    return Taus(
        mean(every), {c: mean(t) for c, t in suite.items()},
        mean(unseen) if unseen else None, {c: mean(t) for c, t in held.items()},
    )  # fmt: skip


def mean(values: Iterable[Fraction]) -> Fraction:
    """The mean, exactly."""
    found = list(values)
    return sum(found, Fraction()) / len(found)
