"""Which declared levers may be tried now, and why the others may not. Pure.

A lever's identity is what it changes, not its name: the same change under another name is refused
with a pointer to the decision that closed it. A closed lever comes back at lower odds once a
condition that its decision held under has changed: the ruler, the incumbent or the engine's code;
or because a person reopened it. What a person deferred waits until it is reopened.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flywheel.best import Best, engine_part
from flywheel.heads import record
from flywheel.ledger.rows import SteeringRow, VariantRow, View
from flywheel.lever import Lever, canonical
from flywheel.patch.chain import chain

# A lever that lost once seldom wins because something else changed.
REOPENED = 0.25
UNDECIDED = 0.5
# The code of what could not be told here, however good.
BLIND = "unresolvable"
# What an engine runs that was not asked for a backend.
DEFAULT_BACKEND = "torch"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A lever that may run; `discount` multiplies its odds, `note` says why it is not 1.

    `confirm` is set when a screen let it through already.
    """

    lever: Lever
    discount: float = 1.0
    note: str = ""
    confirm: bool = False


@dataclass(frozen=True, slots=True)
class Ineligible:
    """A lever that may not run, and the sentence that says why."""

    lever: Lever
    reason: str


def admit(
    view: View,
    levers: Sequence[Lever],
    best: Best,
    effective: Mapping[str, Mapping[str, Any]],
    kinds: Collection[str],
    *,
    sees_heads: bool = False,
) -> tuple[tuple[Candidate, ...], tuple[Ineligible, ...]]:
    """Split the declared levers into those that may run and those that may not.

    With `sees_heads` those heads may that an earlier night had too few prompts to judge.
    """
    resolved = {**effective.get(canonical(engine_part(best.config)), {}), **best.config}
    ready: list[Candidate] = []
    refused: list[Ineligible] = []
    seen: dict[str, Lever] = {}
    for lever in (priced(view, lever) for lever in levers):
        if lever.identity in seen:
            other = seen[lever.identity].name
            refused.append(Ineligible(lever, f"{lever.name} is the same change as {other}"))
            continue
        seen[lever.identity] = lever
        answer = _one(view, lever, best, resolved, kinds, sees_heads=sees_heads)
        if isinstance(answer, Candidate):
            ready.append(answer)
        else:
            refused.append(answer)
    return tuple(ready), tuple(refused)


def priced(view: View, lever: Lever) -> Lever:
    """The lever with the newest ceiling that was measured for it."""
    found = [s.ceiling for s in view.steering
             if s.word == "priced" and s.lever_identity == lever.identity]
    return replace(lever, ceiling=found[-1]) if found else lever


def _said(view: View, lever: Lever) -> SteeringRow | None:
    """Whether a lever was deferred or reopened last."""
    found = [s for s in view.steering
             if s.word != "priced" and s.lever_identity == lever.identity]
    return found[-1] if found else None


def _one(
    view: View,
    lever: Lever,
    best: Best,
    resolved: Mapping[str, Any],
    kinds: Collection[str],
    *,
    sees_heads: bool,
) -> Candidate | Ineligible:
    if lever.null:
        return Ineligible(lever, f"{lever.name} changes nothing; canaries are placed by the plan")
    if lever.kind not in kinds:
        return Ineligible(lever, f"{lever.name}: this run handles no levers of kind {lever.kind}")
    if (said := _said(view, lever)) is not None and said.word == "deferred":
        return Ineligible(lever, f"{lever.name} is deferred: {said.why}")
    if (lacking := _lacking(lever, resolved)) is not None:
        return Ineligible(lever, lacking)
    field, value = next(iter(lever.change.items()))
    if field in resolved and canonical(resolved[field]) == canonical(value):
        return Ineligible(lever, f"{lever.name} is already in the incumbent")
    if lever.kind == "patch" and value in {p.diff_sha256 for p in chain(view, best.config)}:
        return Ineligible(lever, f"{lever.name} is already in the incumbent")
    if lever.kind == "head" and _trained(view, best.config.get("head"), value):
        return Ineligible(lever, f"{lever.name} is already in the incumbent")
    if any(v.waiting and v.lever.identity == lever.identity for v in view.variants):
        return Ineligible(lever, f"{lever.name} passed its screen and waits to be confirmed")
    past = [v for v in view.variants if v.purpose == "lever" and v.decision is not None
            and v.lever.identity == lever.identity]
    if not past:
        return Candidate(lever)
    return _after(view, lever, past[-1], best, sees_heads=sees_heads)


def _trained(view: View, head: object, change: Any) -> bool:
    """Whether the incumbent `head` was trained by the very recipe that a lever makes of its own."""
    card = view.card_of(head)
    if card is None or not card.get("lever") or record.START in change:
        return False
    known = record.changes(card)
    return canonical({**known, **record.of_recipe(change)}) == canonical(known)


def _lacking(lever: Lever, resolved: Mapping[str, Any]) -> str | None:
    """What the incumbent would have to be for the lever to mean anything; None when it is."""
    backend = resolved.get("backend", DEFAULT_BACKEND)
    for need in lever.needs:
        if need == "drafts":
            if resolved.get("draft_width") == 0:
                return f"{lever.name} is about drafts, and the incumbent drafts nothing"
        elif need != backend:
            return f"{lever.name} is one of the {need} backend, and the incumbent runs {backend}"
    return None


def _after(
    view: View, lever: Lever, last: VariantRow, best: Best, *, sees_heads: bool
) -> Candidate | Ineligible:
    """A lever that was decided before: closed, or back at lower odds with the reason said."""
    decision = last.decision
    assert decision is not None
    assert view.campaign is not None
    same = "" if last.lever.name == lever.name else f" as {last.lever.name}"
    pointer = f"D{decision.number}{same}: {decision.ending}, {decision.sentence}"
    if decision.code == "incumbent_moved":
        return Candidate(lever, note=f"; it passed its screen: {pointer}", confirm=True)
    said = _said(view, lever)
    if said is not None and said.after_decision >= decision.number:
        return Candidate(lever, REOPENED, f"; reopened after {pointer}: {said.why}")
    if sees_heads and lever.kind == "head" and decision.code == BLIND and lever.ceiling is None:
        return Candidate(lever, note=f"; judged by more prompts than {pointer}")
    if last.campaign_id == view.campaign.id:
        return Ineligible(lever, f"{lever.name} was decided in this campaign by {pointer}")
    if decision.ending in ("void", "inconclusive"):
        return Candidate(lever, UNDECIDED, f"; again after {pointer}")
    if changed := conditions_changed(view, last, best):
        return Candidate(lever, REOPENED, f"; reopened: {' and '.join(changed)} since {pointer}")
    return Ineligible(lever, f"{lever.name} was closed by {pointer}")


def conditions_changed(view: View, last: VariantRow, best: Best) -> tuple[str, ...]:
    """What has changed since a decision, of the conditions that it held under."""
    metric = last.lever.metric  # rulers of other metrics are others, and always were
    newest = next((b for b in reversed(view.blocks())
                   if b.estimate is not None and b.estimate.metric == metric), None)
    own = last.measured[-1] if last.measured else last.screened
    changed = []
    then, now = dict(last.incumbent), dict(best.config)
    if fields := sorted(k for k in {*then, *now} if then.get(k, ...) != now.get(k, ...)):
        changed.append(f"the incumbent changed ({', '.join(fields)})")
    if newest is not None and own is not None:
        if newest.ruler_id != own.ruler_id:
            changed.append("the ruler changed")
        if newest.source_sha256 != own.source_sha256:
            changed.append("the engine's code changed")
    return tuple(changed)
