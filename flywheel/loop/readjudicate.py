"""Every past lever decided again from its stored measurements, in the original order.

Blocks are looked at one after the other as they were measured, so that each verdict falls where the
rule would have stopped, and the error budget is folded anew. Verdicts that flip are appended and
supersede the old ones; nothing is edited and nothing is measured. The best configuration is the
fold of the standing verdicts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from flywheel.best import fold
from flywheel.ledger import views
from flywheel.ledger.rows import CampaignRow, DecisionRow, VariantRow, View
from flywheel.ledger.store import Ledger
from flywheel.loop.verdicts import append_superseding, consider, first_blocks, screen_verdict
from flywheel.statistics.campaign import Budget, Settings
from flywheel.statistics.decide import Rule, Verdict

RuleOf = Callable[[CampaignRow], Rule]


@dataclass(frozen=True, slots=True)
class Flip:
    """A verdict that another rule changes, and why. `number` is None until it is appended."""

    decision: int
    lever: str
    before: str
    after: str
    was: str
    why: str
    purpose: str = "lever"
    number: int | None = None

    def as_dict(self) -> dict[str, object]:
        """Plain JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Readjudicated:
    """What came of it: flips among `decided` verdicts, and the best before and after.

    `orphans` names standing promotions that were measured on top of one that no longer stands.
    """

    decided: int
    flips: tuple[Flip, ...]
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    orphans: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Judged:
    """One decision again: its blocks of those `measured`, its verdict, and the budget before it."""

    old: DecisionRow
    variant: VariantRow
    verdict: Verdict
    budget: Budget
    rule: Rule
    measured: int = 0

    @property
    def flips(self) -> bool:
        """It ends otherwise now."""
        return self.verdict.ending != self.old.ending


def judge_again(view: View, rule_of: RuleOf) -> Iterator[Judged]:
    """Every verdict that numbers decided, in the order of the tests. Pure.

    Gates, voids and prices are no matter of the rule: those verdicts stand.
    """
    budgets: dict[int, Budget] = {}
    campaigns = {c.id: c for c in view.campaigns}
    for old in view.standing():
        variant = view.variant(old.variant_id)
        campaign = campaigns[variant.campaign_id]
        rule = rule_of(campaign)
        budget = budgets.setdefault(campaign.id, Budget(campaign.settings))
        promoted = old.promoted
        if (made := _again(view, variant, old, replace(campaign.settings, rule=rule), budget)):
            promoted = made.verdict.ending == "promoted"
            yield made
        if old.test is not None:
            budgets[campaign.id] = budget.after(promoted)


def _again(
    view: View, variant: VariantRow, old: DecisionRow, settings: Settings, budget: Budget
) -> Judged | None:
    only_screened = old.code in ("screened_out", "stopped_early") and not variant.measured
    if only_screened and variant.screened is not None:
        answer = variant.screened.answer.under(settings.rule)
        verdict = screen_verdict(answer, settings.rule)
        if answer.passed:
            # It would have been confirmed.
            verdict = replace(verdict, ending="inconclusive", code="stopped_early")
        return Judged(old, variant, verdict, budget, settings.rule)
    if not (old.n and old.mean is not None and variant.measured):
        return None
    shorter = variant
    last: Verdict | None = None
    for n in range(1, len(variant.measured) + 1):
        shorter = first_blocks(variant, n)
        last = consider(view, shorter, settings, budget.alpha_t)
        if last.ending is not None:
            break
    assert last is not None
    if last.ending is None:
        # It would have measured on; what was never measured promotes nothing.
        last = replace(last, ending="inconclusive", code="stopped_early")
    return Judged(old, shorter, last, budget, settings.rule, len(variant.measured))


def readjudicate(
    ledger: Ledger, rule_of: RuleOf, *, now_utc: str, dry_run: bool = False
) -> Readjudicated:
    """Decide everything again; append the flips unless it is a dry run."""
    if dry_run:
        with ledger.reading() as connection:
            view = views.load(connection)
        judged = tuple(judge_again(view, rule_of))
        endings = {j.old.number: str(j.verdict.ending) for j in judged}
        return _summary(view, view.with_endings(endings), judged, {})
    with ledger.transaction() as writer:
        view = views.load(writer.connection)
        judged = tuple(judge_again(view, rule_of))
        numbers = {
            j.old.number: append_superseding(
                writer, j.variant, j.verdict, j.rule, j.old, j.budget, now_utc
            )
            for j in judged
            if j.flips
        }
        return _summary(view, views.load(writer.connection), judged, numbers)


def _summary(
    view: View, after: View, judged: tuple[Judged, ...], numbers: Mapping[int, int]
) -> Readjudicated:
    flips = tuple(
        Flip(
            j.old.number, j.variant.lever.name, j.old.ending, str(j.verdict.ending),
            j.old.sentence, _why(j), j.variant.purpose, numbers.get(j.old.number),
        )
        for j in judged
        if j.flips
    )
    fallen = {flip.decision for flip in flips if flip.before == "promoted"}
    best, orphans = fold(after), []
    for variant in after.variants:
        standing = variant.decision is not None and variant.decision.promoted
        if standing and variant.purpose == "lever" and variant.from_decision in fallen:
            orphans.append(variant.lever.name)
    return Readjudicated(
        len(judged), flips, fold(view).config, best.config, tuple(orphans)
    )


def _why(judged: Judged) -> str:
    verdict = judged.verdict
    needed = f"1/{verdict.alpha_t:.3g}" if verdict.alpha_t > 0 else "any E"
    said = f"{verdict.sentence} ({verdict.code}"
    if verdict.n:
        looked = f"{verdict.n} of {judged.measured} blocks"
        said += f", E {verdict.e_value:.3g} of {needed} after {looked}"
    return said + ")"
