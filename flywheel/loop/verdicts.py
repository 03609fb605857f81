"""A verdict, its place in the error budget and its findings, as rows of one transaction."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from flywheel import best
from flywheel.errors import LedgerError
from flywheel.heads.judge import verdict as of_head
from flywheel.ledger import models, views
from flywheel.ledger.rows import DecisionRow, VariantRow, View
from flywheel.ledger.writer import Writer
from flywheel.lever import canonical, fingerprint
from flywheel.loop.ablation import interaction
from flywheel.loop.halting import null_alarm
from flywheel.statistics.band import effect_band, gain_fraction, log_gain, pool
from flywheel.statistics.campaign import Budget, Settings
from flywheel.statistics.decide import (
    Z_POWER,
    Evidence,
    Rule,
    Verdict,
    decide,
    percent,
    span,
    two_digits,
)
from flywheel.statistics.history import series
from flywheel.statistics.lossy import verdict as of_lossy
from flywheel.statistics.screen import Screened, choose

# What these fields openly trade for time; everything else must hold it.
TRADED = dict.fromkeys(
    ("draft_width", "verify_policy", "margin_threshold", "confidence_threshold"), ("tau",)
)


def consider(view: View, variant: VariantRow, settings: Settings, alpha_t: float) -> Verdict:
    """The verdict on a variant from its blocks and all blocks before the last of them. Pure.

    Any error in the statistics leaves the variant undecided by raising: never a promotion.
    """
    if variant.lever.metric == "tau":
        return of_head(variant.estimates, alpha_t, settings.rule)
    if variant.lever.lossy:
        return of_lossy(variant.estimates, settings.rule)
    last = variant.measured[-1]
    names = sorted({name for e in variant.estimates for name, _ in e.categories})
    traded = TRADED.get(variant.lever.field_name or "", ())
    metrics = {name for e in variant.estimates for name, _ in e.guards} - set(traded)
    evidence = Evidence(
        blocks=variant.estimates,
        past=pool(series(view, last, exclude=(variant.id,))),
        alpha_t=alpha_t,
        guards={
            c: pool(series(view, last, exclude=(variant.id,), category=c)) for c in names
        },
        metrics={
            m: pool(series(view, last, exclude=(variant.id,), metric=m)) for m in sorted(metrics)
        },
        ceiling=variant.lever.ceiling,
        floor_ms=settings.floor_ms,
    )
    return decide(evidence, settings.rule)


def first_blocks(variant: VariantRow, n: int) -> VariantRow:
    """The variant as it was when its n-th block had just been measured."""
    last = variant.measured[n - 1].serial
    return replace(variant, blocks=tuple(b for b in variant.blocks if b.serial <= last))


def append_decision(
    writer: Writer, view: View, variant: VariantRow, verdict: Verdict, rule: Rule, now_utc: str
) -> tuple[str, ...]:
    """A verdict with its findings; returns the findings' sentences."""
    budget = view.budget(variant.campaign_id)
    # A lever that was looked at has spent its test, however it ended; a screen is no look, and
    # nothing can come of a look at what is lossy.
    test = budget.tests + 1 if verdict.n and not variant.lever.lossy else None
    number = _append_verdict(
        writer, variant, verdict, rule, now_utc, test=test, promotions=budget.promotions
    )
    found = sentences(variant, verdict)
    if verdict.ending in ("promoted", "rejected"):
        found += tuple(s for s in [interaction(view, variant, verdict.band)] if s is not None)
    for sentence in found:
        writer.append(
            models.finding, variant_id=variant.id, decision_id=number, sentence=sentence,
            evidence=_evidence(variant), created_utc=now_utc,
        )
    return found


def close_screened(writer: Writer, now_utc: str) -> tuple[str, ...]:
    """Close every screened lever of the campaign that will not be confirmed as it stands.

    Those that failed their screen; those that another of their group outdid, for a group spends one
    test; and those that were screened against an incumbent that is no more.
    """
    view = views.load(writer.connection)
    assert view.campaign is not None
    campaign = view.campaign
    waiting = [v for v in view.of_campaign(campaign.id) if v.waiting]
    current = canonical(dict(best.fold(view).config))
    chosen = choose([(v.lever.group, v.screened.answer) for v in waiting if v.screened])
    found: tuple[str, ...] = ()
    for i, variant in enumerate(waiting):
        assert variant.screened is not None
        answer, first = variant.screened.answer, chosen.get(variant.lever.group)
        spent = screen_verdict(answer, campaign.settings.rule)
        if answer.passed and canonical(dict(variant.incumbent)) != current:
            said = "passed its screen, but the incumbent changed before its confirmation"
            spent = replace(spent, ending="void", code="incumbent_moved", sentence=said)
        elif answer.passed and first == i:
            continue
        elif answer.passed and first is not None:
            said = f"{waiting[first].lever.label()} did better on the screen of their family"
            spent = replace(spent, ending="inconclusive", code="family", sentence=said)
        found += append_decision(writer, view, variant, spent, campaign.settings.rule, now_utc)
    return found


def screen_verdict(answer: Screened, rule: Rule) -> Verdict:
    """The ending of a lever that a screen turned away: closed only if its gain is bounded."""
    closed = answer.high < log_gain(rule.useful)
    seen = gain_fraction(answer.needed + Z_POWER * answer.sd)
    return Verdict(
        "rejected" if closed else "inconclusive", "screened_out", answer.sentence, 0, answer.band,
        0.0, 0.0, detectable=None if closed else seen, sd=answer.sd,
    )


def append_superseding(
    writer: Writer,
    variant: VariantRow,
    verdict: Verdict,
    rule: Rule,
    old: DecisionRow,
    budget: Budget,
    now_utc: str,
) -> int:
    """A decision that takes the place of an older one; returns its number."""
    number = _append_verdict(
        writer, variant, verdict, rule, now_utc,
        test=old.test, promotions=budget.promotions, supersedes=old.number,
    )
    flip = f"{old.ending} became {verdict.ending} under rule {rule.version}"
    said = f"{variant.lever.label()}: {flip}"
    writer.append(
        models.finding, variant_id=variant.id, decision_id=number, sentence=said,
        evidence=_evidence(variant), created_utc=now_utc,
    )
    return number


def _append_verdict(
    writer: Writer,
    variant: VariantRow,
    verdict: Verdict,
    rule: Rule,
    now_utc: str,
    *,
    test: int | None,
    promotions: int,
    supersedes: int | None = None,
) -> int:
    if variant.lever.lossy and verdict.ending == "promoted":
        raise LedgerError(f"{variant.lever.name} is lossy: it is never promoted")
    band = verdict.band
    number = writer.append(
        models.decision,
        variant_id=variant.id, ending=verdict.ending, code=verdict.code,
        sentence=verdict.sentence, is_null=variant.null, n=verdict.n,
        mean=band.mean if band else None, low=_bounded(band.low if band else None),
        high=_bounded(band.high if band else None), nu=band.nu if band else None,
        e_value=min(verdict.e_value, 1e299), alpha_t=verdict.alpha_t, test=test,
        promotions_before=promotions, rule_version=rule.version, rule=rule.as_dict(),
        details={**details(verdict), "conditions": conditions(variant)},
        supersedes=supersedes, created_utc=now_utc,
    )
    writer.append_all(
        models.decision_block,
        [{"decision_id": number, "block_id": b.id} for b in variant.measured],
    )
    return number


def _bounded(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def conditions(variant: VariantRow) -> dict[str, Any]:
    """What a verdict holds under: a change of any of these reopens what it closed."""
    last = variant.measured[-1] if variant.measured else variant.screened
    return {
        "incumbent": fingerprint(dict(variant.incumbent)),
        "ruler_id": None if last is None else last.ruler_id,
        "source_sha256": None if last is None else last.source_sha256,
    }


def details(verdict: Verdict) -> dict[str, Any]:
    """What a decision keeps beyond its columns; plain JSON."""
    return {
        "detectable": verdict.detectable,
        "regressions": list(verdict.regressions),
        "shrunk_gain": verdict.shrunk_gain,
        "worth_less_than": verdict.worth_less_than,
        "unstable": verdict.unstable,
        "sd": _bounded(verdict.sd),
    }


def sentences(variant: VariantRow, verdict: Verdict) -> tuple[str, ...]:
    """The findings that a decision is worth."""
    lever, blocks = variant.lever, "1 block" if verdict.n == 1 else f"{verdict.n} blocks"
    if not verdict.n and variant.screened is not None:
        blocks = "one load of a screen"
    if variant.null:
        word = "promoted, wrongly" if verdict.ending == "promoted" else "not promoted"
        return (f"canary {variant.id} was {word}: {verdict.sentence}, {blocks}",)
    if verdict.code == "regression":
        head = f"{lever.label()}: rejected, {verdict.sentence.replace('regression', 'REGRESSION')}"
    else:
        head = f"{lever.label()}: {verdict.ending}, {verdict.sentence}"
    first = f"{head} ({blocks}, predicted {variant.predicted_gain * 100:.3g} %)"
    miss = prediction_miss(variant.predicted_gain, verdict)
    return (first,) if miss is None else (first, f"{lever.label()}: {miss}")


def prediction_miss(predicted: float, verdict: Verdict) -> str | None:
    """A sentence when the prediction was off by more than 2x for sure; None otherwise."""
    if verdict.band is None or verdict.ending not in ("promoted", "rejected") or not predicted:
        return None
    low, high = gain_fraction(verdict.band.low), gain_fraction(verdict.band.high)
    if high < predicted / 2:
        word = "worth less than" if high >= 0 else "costs more than"
        return f"predicted {predicted * 100:.3g} %, {word} {two_digits(abs(high))}: over 2x off"
    if low > predicted * 2:
        return f"predicted {predicted * 100:.3g} %, worth over {two_digits(low)}: over 2x off"
    return None


def _evidence(variant: VariantRow) -> dict[str, Any]:
    runs = [r.id for b in variant.blocks for r in b.runs]
    return {"blocks": [b.id for b in variant.blocks], "runs": runs}


def append_calibration(
    writer: Writer, view: View, variant: VariantRow, settings: Settings, now_utc: str
) -> tuple[str, ...]:
    """One sentence when the nulls, or the anchor, are complete."""
    hot = variant.blocks[0].hot
    nulls = settings.calibration if hot else settings.cold_calibration
    wanted = nulls if variant.purpose == "null" else settings.anchor_blocks
    if len(variant.measured) != wanted:
        return ()
    gains = [e.gain for e in variant.estimates]
    last = variant.measured[-1]
    band = effect_band(gains, pool(series(view, last, exclude=(variant.id,))))
    if variant.purpose == "anchor":
        said = (
            f"the best configuration saves {percent(band.mean)} [{span(band)}] of the time per "
            f"token of the frozen first one, {band.n} blocks"
        )
    else:
        alarm = null_alarm(variant.measured, settings.rule)
        sd = math.sqrt(pool(series(view, last)).variance) * 100
        said = alarm or (
            f"the null reads null: {gain_fraction(band.mean) * 100:+.2f} % over {band.n} blocks, "
            f"spread {sd:.2f} %"
        )
    writer.append(
        models.finding, variant_id=variant.id, decision_id=None, sentence=said,
        evidence=_evidence(variant), created_utc=now_utc,
    )
    return (said,)
