"""The brief: what a proposer is told, as one JSON document. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from flywheel.best import headline, level
from flywheel.heads import record
from flywheel.ledger.rows import DecisionRow, VariantRow, View
from flywheel.lever import Lever
from flywheel.loop.eligible import admit
from flywheel.loop.ranking import ranked
from flywheel.patch.paths import ALLOWED
from flywheel.propose.admission import NOT_LEVERS, Grounds
from flywheel.propose.answer import MOST, SCHEMA
from flywheel.statistics.band import gain_fraction

FORMAT = 1
FINDINGS, REFUSED = 40, 20
TASK = (
    "Propose changes that make this model decode faster on this box. Each is measured against the "
    "incumbent, token by token and with an error budget, so propose few and say of each what "
    "mechanism should make it faster. Answer on stdout with one JSON document of the schema given."
)
RULES = (
    "A lever changes exactly one thing against the incumbent.",
    "Every token of every prompt must stay as it is: what changes a token is incorrect, not fast.",
    "predicted_gain and ceiling are fractions of the time per token saved: 0.03 is 3 %.",
    "A lever whose ceiling is under the bar is closed without a run.",
    "What is closed stays closed while the conditions it was closed under hold.",
    "The same change under another name is a duplicate and is refused.",
    f"These fields are no levers: {', '.join(NOT_LEVERS)}.",
    "A sweep gives a field several values, or two ends to search between; its best is confirmed.",
    "A head changes one thing of the recipe that the incumbent was trained by.",
    "A patch is a unified diff against the revision that is checked out, of "
    f"{', '.join(ALLOWED)} alone: never a test, an oracle, or what measures.",
    "A prediction decides nothing but the order; whoever is wrong twofold has that on record.",
)


def compose(
    grounds: Grounds,
    *,
    hardware: Mapping[str, Any],
    profile: Mapping[str, Any],
    proposer: str,
    seconds: float,
) -> dict[str, Any]:
    """Everything that a proposer is told; `profile` is the newest document, or empty."""
    view, campaign = grounds.view, grounds.view.campaign
    assert campaign is not None
    asked = [a for a in view.attempts if a.campaign_id == campaign.id and a.proposer == proposer]
    return {
        "format": FORMAT,
        "task": TASK,
        "rules": list(RULES),
        "bar": {"promoted_over": campaign.settings.rule.delta_min,
                "worth_finding": campaign.settings.rule.useful},
        "limits": {"levers": MOST, "seconds": round(seconds)},
        "proposer": proposer,
        "attempt": len(asked) + 1,
        "hardware": {"box": campaign.box, **hardware},
        "incumbent": _incumbent(grounds),
        "fields": {n: dict(told) for n, told in grounds.fields.items() if n not in NOT_LEVERS},
        "profile": _profile(profile),
        "levers": {"open": _open(grounds), "closed": _closed(view)},
        "ceilings": _ceilings(grounds),
        "findings": [{"number": f.number, "date": f.created_utc[:10], "said": f.sentence}
                     for f in view.findings[-FINDINGS:]],
        "refused": _refused(view),
        "schema": SCHEMA,
    }  # fmt: skip


def told_back(brief: Mapping[str, Any], answer: str, errors: Sequence[str]) -> dict[str, Any]:
    """The same brief for a second try: what was answered, and everything wrong with its form."""
    return {**brief, "told_back": {"answer": answer[:20_000], "errors": list(errors)}}


def _incumbent(grounds: Grounds) -> dict[str, Any]:
    view, best = grounds.view, grounds.best
    found: dict[str, Any] = {
        "config": grounds.resolved, "first_config": dict(best.first_config),
        "promotions": [f"D{number}" for number in best.promotions],
        "recipe_changes": _recipe_changes(view, best.config.get("head")),
    }  # fmt: skip
    newest = next((b for b in reversed(view.blocks())
                   if b.estimate is not None and b.estimate.metric != "tau"), None)  # fmt: skip
    here = None if newest is None or newest.ruler_id is None else level(
        view, best.config, newest.ruler_id
    )
    if here is not None:
        band = here[0]
        found["ms_per_token"] = {name: _exp(value) for name, value in (
            ("mean", band.mean), ("low", band.low), ("high", band.high))}
    if (measured := headline(view, best)) is not None:
        band = measured[0]
        found["gain_against_first"] = {
            "mean": gain_fraction(band.mean), "low": _gain(band.low), "high": _gain(band.high)
        }
    return found


def _recipe_changes(view: View, head: object) -> dict[str, Any] | None:
    """What the incumbent head's recipe changes of the usual one; None for the checkpoint's own."""
    card = view.card_of(head)
    return None if card is None else record.changes(card)


def _profile(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a step's time goes to and what is left to gain in each phase; None without a profile."""
    wanted = ("config", "rows", "phases", "ranking")
    return {name: document[name] for name in wanted if name in document} or None


def _open(grounds: Grounds) -> list[dict[str, Any]]:
    ready, refused = admit(
        grounds.view, grounds.known, grounds.best, grounds.effective, grounds.kinds
    )
    waiting = [
        {**_about(one.candidate.lever), "state": "waits", "why": one.why}
        for one in ranked(grounds.view, ready)
    ]
    others = [
        {**_about(one.lever), "state": "may not run now", "why": one.reason}
        for one in refused if not one.lever.null and not _decided(grounds.view, one.lever)
    ]
    return [*waiting, *others]


def _about(lever: Lever) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": lever.name, "kind": lever.kind, "change": dict(lever.change),
        "claim": lever.claim, "predicted_gain": lever.predicted_gain,
    }  # fmt: skip
    return found if lever.ceiling is None else {**found, "ceiling": lever.ceiling}


def _decided(view: View, lever: Lever) -> bool:
    return any(v.decision is not None and v.lever.identity == lever.identity
               for v in view.variants)  # fmt: skip


def _closed(view: View) -> list[dict[str, Any]]:
    """Every decided lever with the numbers that decided it, oldest first."""
    found = [(v, v.decision) for v in view.variants if v.purpose == "lever" and v.decision]
    return [_told(variant, made) for variant, made in sorted(found, key=lambda one: one[1].number)]


def _told(variant: VariantRow, made: DecisionRow) -> dict[str, Any]:
    band = made.band
    gain = None if band is None else {
        "mean": gain_fraction(band.mean), "low": _gain(band.low), "high": _gain(band.high)
    }
    return {
        **_about(variant.lever), "decision": f"D{made.number}", "ending": made.ending,
        "why": made.sentence, "gain": gain, "blocks": made.n,
    }  # fmt: skip


def _ceilings(grounds: Grounds) -> list[dict[str, Any]]:
    """What was measured or derived as the most that a lever can bring."""
    priced = [{"lever": s.name, "ceiling": s.ceiling, "why": s.why}
              for s in grounds.view.steering if s.word == "priced"]  # fmt: skip
    named = {one["lever"] for one in priced}
    stated = [{"lever": x.name, "ceiling": x.ceiling, "why": x.claim}
              for x in grounds.known if x.ceiling is not None and x.name not in named]  # fmt: skip
    return [*priced, *stated]


def _refused(view: View) -> list[dict[str, Any]]:
    """What was proposed of late and not taken, with the reason."""
    found = [
        {"proposer": a.proposer, "attempt": a.number, "name": one.get("name"),
         "reason": one.get("reason")}
        for a in view.attempts for one in a.verdicts if not one.get("admitted")
    ]  # fmt: skip
    return found[-REFUSED:]


def _gain(log_gain: float) -> float | None:
    return gain_fraction(log_gain) if math.isfinite(log_gain) else None


def _exp(value: float) -> float | None:
    return math.exp(value) if math.isfinite(value) and abs(value) < 700 else None
