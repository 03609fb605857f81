"""What makes every later number worthless: the evidence for a halt, found in the history. Pure.

A halt stands until a person resumes it.  Its evidence is a code and a run, so that a halt which
was seen, looked into and resumed is not raised again by the same run.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from flywheel.ledger.rows import BlockRow, CampaignRow, RunRow, VariantRow, View
from flywheel.statistics.band import gain_fraction, null_bias
from flywheel.statistics.decide import Rule

# After these the campaign's older numbers no longer compare with newer ones.
NEW_RULER = ("checkpoint_changed", "ruler_changed")

Evidence = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class Alarm:
    """One reason to halt. ``run_id`` is the run that showed it; None when no run did."""

    code: str
    reason: str
    run_id: str | None

    @property
    def evidence(self) -> Evidence:
        """What identifies it."""
        return self.code, self.run_id


def halt_sentence(code: str, reason: str) -> str:
    """What is said of a standing halt: why, and what to do."""
    then = "; flywheel run then begins a new campaign" if code in NEW_RULER else ""
    return (
        f"the loop is halted: {reason.rstrip('.')}. Look into it, then: "
        f'flywheel resume --why "what it was"{then}'
    )


def alarms(
    view: View, campaign: CampaignRow, settled: Collection[Evidence] = ()
) -> tuple[Alarm, ...]:
    """Every reason to halt in a campaign's history but those that were resumed already."""
    mine = view.of_campaign(campaign.id)
    found = [alarm for variant in mine for alarm in _of_variant(variant)]
    found += _of_nulls(mine, campaign, settled)
    if campaign.settings.canaries:
        # To count promoted canaries is what this campaign is for.
        found = [alarm for alarm in found if alarm.code != "canary_promoted"]
    return tuple(alarm for alarm in found if alarm.evidence not in settled)


def _of_variant(variant: VariantRow) -> Iterator[Alarm]:
    if variant.purpose == "canary" and variant.decision and variant.decision.promoted:
        reason = f"canary {variant.id} was promoted: the box reads gains where there are none"
        last = variant.measured[-1] if variant.measured else None
        yield Alarm("canary_promoted", reason, None if last is None else _last_run(last))
    for block in variant.blocks:
        yield from _of_block(variant, block)
        yield from (alarm for run in block.runs if (alarm := _of_run(variant, block, run)))


def _of_block(variant: VariantRow, block: BlockRow) -> Iterator[Alarm]:
    code, detail, run_id = block.void_code, block.void_detail, _last_run(block)
    if variant.purpose != "lever" and code == "gate_failed":
        reason = f"a gate failed on the {variant.purpose} block {block.id}: {detail}"
        yield Alarm("incumbent_incorrect", reason, run_id)
    elif code == "incumbent_incorrect":
        yield Alarm(code, f"block {block.id}: {detail}", run_id)
    elif code == "ruler_changed":
        named = "checkpoint_changed" if "checkpoint_sha256" in detail else code
        yield Alarm(named, f"block {block.id}: {detail}", run_id)
    elif code == "changed_underfoot" and "checkpoint" in detail:
        yield Alarm("checkpoint_changed", f"block {block.id}: {detail}", run_id)


def _of_run(variant: VariantRow, block: BlockRow, run: RunRow) -> Alarm | None:
    exited = run.evidence.get("exit")
    guard = exited.get("guard") if isinstance(exited, dict) else None
    if isinstance(guard, dict) and guard.get("memory_back") is False:
        reason = f"run {run.id} ended, but its memory did not come back"
        return Alarm("memory_not_back", reason, run.id)
    if run.code == "guard_killed" and incumbent_alone(variant, block, run):
        reason = f"the guard killed run {run.id} of the incumbent itself: {run.detail}"
        return Alarm("guard_killed_incumbent", reason, run.id)
    return None


def incumbent_alone(variant: VariantRow, block: BlockRow, run: RunRow) -> bool:
    """Whether a load held nothing but the incumbent, so that its end is no candidate's fault."""
    if variant.purpose in ("null", "canary"):
        return True
    return not block.hot and block.pattern[run.slot] == "A"


def _last_run(block: BlockRow) -> str | None:
    return block.runs[-1].id if block.runs else None


def _of_nulls(
    mine: Sequence[VariantRow], campaign: CampaignRow, settled: Collection[Evidence]
) -> Iterator[Alarm]:
    """The null's alarms, over the null blocks of each kind since it was last resumed.

    A hot block and a cold one spread differently, so the two are never one sample.
    """
    settings = campaign.settings
    for hot, wanted in ((True, settings.calibration), (False, settings.cold_calibration)):
        nulls = sorted((b for v in mine if v.purpose == "null" for b in v.measured if b.hot is hot),
                       key=lambda block: block.serial)  # fmt: skip
        since = max((n + 1 for n, block in enumerate(nulls)
                     if ("null_not_null", _last_run(block)) in settled), default=0)  # fmt: skip
        if len(nulls) >= wanted and (said := null_alarm(nulls[since:], settings.rule)):
            yield Alarm("null_not_null", said, _last_run(nulls[-1]))


def null_alarm(nulls: Sequence[BlockRow], rule: Rule) -> str | None:
    """A sentence when null blocks of one kind are off zero beyond doubt, and by too much."""
    effects = [b.estimate.effect for b in nulls if b.estimate is not None]
    if null_bias(effects) <= rule.most_bias:
        return None
    mean, sd = math.fsum(effects) / len(effects), statistics.stdev(effects)
    return (
        f"the null does not read null: {gain_fraction(-mean) * 100:+.2f} % over {len(effects)} "
        f"blocks with a spread of {sd * 100:.2f} %"
    )
