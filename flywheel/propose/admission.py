"""Whether what a proposer offers may become a lever, and the reason where it may not. Pure.

A proposer never decides anything: what it says of a gain is a prediction like any other, and what
it offers passes the rules that a person's lever passes, and a few more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flywheel.best import Best, engine_part
from flywheel.errors import LeverError
from flywheel.ledger.rows import View
from flywheel.lever import Lever, canonical
from flywheel.loop.eligible import DEFAULT_BACKEND, admit
from flywheel.propose import quarantine
from flywheel.propose.answer import REASON, Answer, Item, Patch, line
from flywheel.sweep import Sweep

# Fields that say what is computed, not how fast: another value is another model, or another ruler.
NOT_LEVERS = (
    "numerics", "dtype", "context", "backend", "acceptance", "head", "patch", "checkpoint", "suite",
)  # fmt: skip

# Takes a patch that passed the quarantine and makes it a lever; LeverError says why it may not be.
TakePatch = Callable[[Patch], Lever]


def no_patches(patch: Patch) -> Lever:
    """What takes patches where nothing does."""
    raise LeverError("patch levers are not available")


@dataclass(frozen=True, slots=True)
class Grounds:
    """What admission looks at. `known` holds every lever that there is, `sweeps` their names too.

    `fields` describes the engine's fields as `engine.fields` prints them, or is empty: then the
    fields of the incumbent as the engine resolved it are all that is known of them. `room` is how
    many more proposed levers may wait.
    """

    view: View
    best: Best
    effective: Mapping[str, Mapping[str, Any]]
    known: Sequence[Lever]
    kinds: Collection[str]
    sweeps: Collection[str] = ()
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    room: int = 1000

    @property
    def resolved(self) -> dict[str, Any]:
        """The incumbent's configuration with what the engine made of the fields it leaves open."""
        stored = self.effective.get(canonical(engine_part(self.best.config)), {})
        return {**stored, **self.best.config}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One proposed lever: `admitted` with what it became, or refused with a reason."""

    name: str
    kind: str
    reason: str = ""
    lever: Lever | Sweep | None = None

    @property
    def admitted(self) -> bool:
        """Whether it is a lever now."""
        return self.lever is not None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, as the ledger keeps it."""
        return {"name": self.name, "kind": self.kind, "admitted": self.admitted,
                "reason": self.reason}  # fmt: skip


def judge(
    answer: Answer, grounds: Grounds, take_patch: TakePatch = no_patches
) -> tuple[Verdict, ...]:
    """Every proposed lever in its order, admitted or refused."""
    verdicts: list[Verdict] = []
    for item in answer.items:
        one = _one(item, grounds, take_patch)
        if isinstance(one.lever, Lever):
            known = (*grounds.known, one.lever)
            grounds = replace(grounds, known=known, room=grounds.room - 1)
        elif isinstance(one.lever, Sweep):
            sweeps = (*grounds.sweeps, one.lever.name)
            grounds = replace(grounds, sweeps=sweeps, room=grounds.room - 1)
        verdicts.append(one)
    return tuple(verdicts)


def _one(item: Item, grounds: Grounds, take_patch: TakePatch) -> Verdict:
    kind = item.body.get("kind", "") if isinstance(item.body, dict) else ""
    about = (item.name, line(kind, 40) if isinstance(kind, str) else "")
    if item.offer is None:
        return Verdict(*about, item.error)
    try:
        return Verdict(*about, lever=_admitted(item.offer, grounds, take_patch))
    except LeverError as error:
        return Verdict(*about, line(str(error), REASON))


def _admitted(
    offer: Lever | Sweep | Patch, grounds: Grounds, take_patch: TakePatch
) -> Lever | Sweep:
    if grounds.room < 1:
        raise LeverError("as many proposed levers wait to be tried as may")
    _require_new_name(offer.name, grounds)
    if isinstance(offer, Patch):
        quarantine.check(offer.diff)
        made = take_patch(offer)
        _require_open(made, grounds)
        return made
    if isinstance(offer, Sweep):
        _require_field(offer.field, offer.values or (offer.low, offer.high), grounds)
        closed = [_closed(offer.lever(value), grounds) for value in offer.values]
        if closed and None not in closed:
            raise LeverError(f"no value is left to try: {closed[0]}")
        return offer
    if offer.kind == "config":
        _require_field(str(offer.field_name), tuple(offer.change.values()), grounds)
    _require_open(offer, grounds)
    return offer


def _require_new_name(name: str, grounds: Grounds) -> None:
    taken = {x.name for x in grounds.known} | {x.sweep for x in grounds.known} | {*grounds.sweeps}
    if name in taken:
        raise LeverError(f"the name {name} is that of another lever")


def _require_open(lever: Lever, grounds: Grounds) -> None:
    if (why := _closed(lever, grounds)) is not None:
        raise LeverError(why)


def _closed(lever: Lever, grounds: Grounds) -> str | None:
    """Why a lever may not run: known already, closed, in the incumbent, of another backend."""
    for other in grounds.known:
        if other.identity == lever.identity:
            return _same(lever, other, grounds)
    _, refused = admit(
        grounds.view, [lever], grounds.best, grounds.effective, grounds.kinds
    )
    return refused[0].reason if refused else None


def _same(lever: Lever, other: Lever, grounds: Grounds) -> str:
    _, refused = admit(
        grounds.view, [other], grounds.best, grounds.effective, grounds.kinds
    )
    state = refused[0].reason if refused else f"{other.name} waits to be tried"
    return f"{lever.name} is the same change as {other.name}: {state}"


def _require_field(name: str, values: Sequence[object], grounds: Grounds) -> None:
    """LeverError unless the engine has such a field and could hold such values."""
    if name in NOT_LEVERS:
        raise LeverError(f"{name} says what is computed, not how fast: it is no lever")
    now = grounds.resolved
    about = grounds.fields.get(name)
    if about is None and (grounds.fields or (now and name not in now)):
        known = ", ".join(sorted({*(grounds.fields or now)} - {*NOT_LEVERS}))
        raise LeverError(f"the engine has no field {name}; it has {known}")
    backend = now.get("backend", DEFAULT_BACKEND)
    if about is not None and about.get("backend", backend) != backend:
        theirs = about["backend"]
        raise LeverError(f"{name} is of the {theirs} backend, and the incumbent runs {backend}")
    for value in values:
        if about is not None and (said := _unfit(value, about)) is not None:
            raise LeverError(f"{name} {said}, not {value!r}")
        if about is None and name in now and not _alike(value, now[name]):
            raise LeverError(f"{name} is {now[name]!r} now, and {value!r} is of another kind")


def _unfit(value: object, about: Mapping[str, Any]) -> str | None:
    """What a field takes, where the value is none of it."""
    if choices := about.get("choices"):
        return None if value in choices else f"takes {', '.join(map(str, choices))}"
    default = about.get("default")
    if not _alike(value, default):
        return f"takes a value like {default!r}"
    if bounds := about.get("range"):
        low, high = bounds
        within = isinstance(value, int | float) and low <= value <= high
        return None if within else f"lies between {low:g} and {high:g}"
    return None


def _alike(value: object, other: object) -> bool:
    if isinstance(other, bool) or isinstance(value, bool):
        return isinstance(other, bool) and isinstance(value, bool)
    if isinstance(other, float):
        return isinstance(value, int | float)
    return other is None or type(value) is type(other)
