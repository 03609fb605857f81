"""A night in four figures: levers by origin, decisions by kind, gain, the engine's share. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flywheel import best as best_of
from flywheel.box.clock import count, span_text
from flywheel.ledger.rows import VariantRow, View
from flywheel.lever import Lever
from flywheel.loop.ablation import FAMILY as ABLATION
from flywheel.report import headline
from flywheel.report.document import Figure
from flywheel.report.scope import Scope
from flywheel.report.tables import HEAD, Line, Page, wrapped

DECLARED, SWEEP = "declared", "sweep"
ENDINGS = ("promoted", "rejected", "inconclusive", "incorrect", "void")


@dataclass(frozen=True, slots=True)
class OriginLine:
    """Levers of one origin: how many came to each ending, are under way, or still wait.

    `admitted` and `refused` count what a proposer offered; a sweep that was taken counts once.
    """

    origin: str
    decided: int
    endings: dict[str, int]
    under_way: int
    waiting: int
    loads: int
    engine_s: float
    attempts: int = 0
    admitted: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Tally:
    """The four figures, and the wall time that they are of."""

    title: str
    origins: tuple[OriginLine, ...]
    decisions: dict[str, int]
    canaries: Figure
    gain: Figure
    engine_share: float | None
    engine_s: float
    wall_s: float
    phases: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def tally(scope: Scope, waiting: Sequence[Lever] = ()) -> Tally:
    """The figures of one part of the history; `waiting` levers may run and were not tried yet."""
    view, cost = scope.view, headline.cost(scope)
    tried = [v for v in scope.variants() if v.purpose == "lever"]
    by_origin: dict[str, list[VariantRow]] = {}
    for variant in tried:
        by_origin.setdefault(origin(view, variant.lever), []).append(variant)
    left: dict[str, int] = {}
    for lever in waiting:
        named = origin(view, lever)
        left[named] = left.get(named, 0) + 1
    names = sorted({*by_origin, *left, *_asked(scope)}, key=_place)
    lines = tuple(_line(scope, n, by_origin.get(n, ()), left.get(n, 0)) for n in names)
    return Tally(
        title=headline.title(scope, cost),
        origins=lines,
        decisions={e: sum(line.endings.get(e, 0) for line in lines) for e in ENDINGS},
        canaries=headline.canaries(scope),
        gain=headline.gain(view, best_of.fold(view)),
        engine_share=cost.engine_share,
        engine_s=cost.engine_s,
        wall_s=cost.wall_s,
        phases=tuple(p.phase for p in view.phases if _within(scope, p.campaign_id, p.created_utc)),
    )


def origin(view: View, lever: Lever) -> str:
    """Where a lever came from: a declaration, a sweep, a residual, a proposer, an ablation."""
    if lever.family == ABLATION:
        return ABLATION
    if lever.sweep:
        named = {row.sweep.name: row.origin for row in view.sweeps}
        return f"{named[lever.sweep]}, {SWEEP}" if lever.sweep in named else SWEEP
    proposed = {row.lever.identity: row.origin for row in view.proposals}
    return proposed.get(lever.identity, DECLARED)


def lines(found: Tally, page: Page) -> Iterator[Line]:
    """The figures on a terminal, none wider than the page."""
    yield from wrapped(page, "", found.title, style="bold")
    yield from wrapped(page, "canaries", found.canaries.text)
    yield from wrapped(page, "gain", found.gain.text)
    share = "unknown" if found.engine_share is None else f"{found.engine_share * 100:.1f} %"
    yield from wrapped(
        page, "engine", f"{share} of {span_text(found.wall_s)} of wall time in engine runs"
    )
    yield from wrapped(page, "decisions", _said(found.decisions) or "none yet")
    if found.phases:
        yield from wrapped(page, "phases", " > ".join(("exploit", *found.phases)))
    widest = max((len(one.origin) for one in found.origins), default=HEAD)
    for one in found.origins:
        yield from wrapped(page, one.origin, _told(one), width=max(HEAD, widest))


def _told(one: OriginLine) -> str:
    parts = [f"{one.decided} decided"]
    if one.decided:
        parts[0] += f": {_said(one.endings)}"
    parts += [f"{number} {word}" for number, word in
              ((one.under_way, "under way"), (one.waiting, "waiting")) if number]  # fmt: skip
    if one.loads:
        parts.append(f"{count(one.loads, 'load')}, {span_text(one.engine_s)}")
    if one.attempts:
        parts.append(
            f"{count(one.attempts, 'attempt')}: {one.admitted} admitted, {one.refused} refused"
        )
    return " · ".join(parts)


def _said(endings: Mapping[str, int]) -> str:
    return ", ".join(f"{endings[e]} {e}" for e in ENDINGS if endings.get(e))


def _place(name: str) -> tuple[bool, str]:
    return name != DECLARED, name


def _within(scope: Scope, campaign_id: int, when_utc: str) -> bool:
    if scope.since_utc is not None:
        return when_utc >= scope.since_utc
    return campaign_id == scope.campaign.id


def _asked(scope: Scope) -> Collection[str]:
    """The origins of proposers that were asked, whether or not a lever of theirs was tried."""
    return {f"proposer:{a.proposer}" for a in scope.view.attempts
            if _within(scope, a.campaign_id, a.created_utc)}  # fmt: skip


def _line(scope: Scope, name: str, tried: Sequence[VariantRow], waiting: int) -> OriginLine:
    endings: dict[str, int] = {}
    for variant in tried:
        if (made := scope.decided(variant)) is not None:
            endings[made.ending] = endings.get(made.ending, 0) + 1
    runs = [r for v in tried for b in scope.blocks(v) for r in b.runs if r.outcome is not None]
    asked = [a for a in scope.view.attempts if f"proposer:{a.proposer}" == name
             and _within(scope, a.campaign_id, a.created_utc)]  # fmt: skip
    return OriginLine(
        name, sum(endings.values()), endings, len(tried) - sum(endings.values()), waiting,
        len(runs), sum(r.wall_s for r in runs), len(asked), sum(a.admitted for a in asked),
        sum(a.refused for a in asked),
    )  # fmt: skip
