"""Evidence for the width analysis from the log of a profile run: round by round, with confidences.

A profile run never counts as a measurement; what it says of calibration and entropy is shown beside
what clean runs measured, and its times are its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from flywheel.errors import UsageError
from flywheel.run import events
from flywheel.run.parse import sealed_events
from flywheel.run.refusal import RefusedLogError
from flywheel.width.evidence import Costs, Evidence, Prompt, Score

_NONCE = re.compile(r"^@([0-9a-f]{32}) ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Rounds:
    """One `rounds` event: a point, round by round."""

    prompt: str
    offered: tuple[int, ...]
    accepted: tuple[int, ...]
    time_ns: tuple[int, ...]
    confidence: tuple[tuple[float, ...], ...]


def evidence(name: str, text: str) -> Evidence:
    """The first arm of a sealed profile log. Raises UsageError for any other text."""
    try:
        return _evidence(name, text)
    except RefusedLogError as error:
        raise UsageError(f"{name} is no whole log of a profile run: {error.refusal}.") from None


def _evidence(name: str, text: str) -> Evidence:
    nonce = _NONCE.search(text)
    found = sealed_events(text, nonce[1] if nonce else "")
    header = events.header(found[0])
    if header.mode != "profile" or not header.arms:
        raise RefusedLogError("not_profile", f"it ran in mode {header.mode}", 1)
    arm = header.arms[0]
    mine = [e for e in found if e.body.get("arm") == arm.name]
    points = [events.point(e) for e in mine if e.name == "point"]
    rounds = [_rounds(e) for e in mine if e.name == "rounds"]
    costs = [events.step_cost(e) for e in mine if e.name == "step_cost"]
    kinds = {p.prompt: p.category for p in points if p.counted}
    texts = {(r.prompt, r.offered, r.accepted): r for r in rounds if r.prompt in kinds}
    prompts = tuple(_prompt(r, kinds[r.prompt]) for r in texts.values())
    step_ns = {c.width: float(c.ns) for c in costs}
    beside = [
        ns - step_ns.get(offered + 1, ns)
        for r in texts.values() for offered, ns in zip(r.offered, r.time_ns, strict=True)
    ]  # fmt: skip
    width = max((p.width for p in points), default=0)
    return Evidence(
        label=f"profile run {header.run_id}",
        sources=(name,),
        width=width,
        policy=str(arm.effective.get("verify_policy", "fixed")),
        prompts=prompts,
        costs=Costs(step_ns, max(0.0, median(beside)) if beside else 0.0),
        score="confidence",
        scores=tuple(s for r in texts.values() for s in _scores(r)),
        target_top=tuple(
            _chances(e, "top")
            for e in mine if e.name == "target" and e.body.get("prompt") in kinds
        ),
        caveats=("a profile run: its times never count",),
    )  # fmt: skip


def _rounds(event: events.Event) -> Rounds:
    found = Rounds(
        event.text("prompt"), event.integers("offered"), event.integers("accepted"),
        event.integers("time_ns"), _tables(event),
    )  # fmt: skip
    lengths = {len(found.offered), len(found.accepted), len(found.time_ns), len(found.confidence)}
    whole = len(lengths) == 1 and all(
        a <= o == len(c)
        for a, o, c in zip(found.accepted, found.offered, found.confidence, strict=False)
    )
    if not whole:
        raise event.bad("offered", "as long as what was accepted, timed and trusted")
    return found


def _tables(event: events.Event) -> tuple[tuple[float, ...], ...]:
    raw = event.body.get("confidence")
    if not isinstance(raw, list):
        raise event.bad("confidence", "a list of lists")
    return tuple(
        _chances(events.Event({"event": event.name, "row": row}, event.line), "row") for row in raw
    )


def _chances(event: events.Event, field: str) -> tuple[float, ...]:
    raw = event.body.get(field)
    if not isinstance(raw, list) or not all(
        isinstance(c, int | float) and not isinstance(c, bool) and 0 <= c <= 1 for c in raw
    ):
        raise event.bad(field, "a list of probabilities")
    return tuple(float(c) for c in raw)


def _prompt(found: Rounds, category: str) -> Prompt:
    pairs = list(zip(found.offered, found.accepted, strict=True))
    deepest = range(max(found.offered, default=0))
    return Prompt(
        found.prompt, category, len(pairs), len(pairs) + sum(found.accepted),
        tuple(sum(o > j for o, _ in pairs) for j in deepest),
        tuple(sum(o > j and a >= j for o, a in pairs) for j in deepest),
        tuple(sum(a > j for _, a in pairs) for j in deepest),
        sum(found.time_ns),
    )  # fmt: skip


def _scores(found: Rounds) -> Sequence[Score]:
    return [
        Score(j + 1, trust[j], accepted > j)
        for offered, accepted, trust in zip(
            found.offered, found.accepted, found.confidence, strict=True
        )
        for j in range(min(offered, accepted + 1))
    ]
