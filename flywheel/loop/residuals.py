"""Levers from a profile: the knobs next to where most is left to gain. Pure.

A residual is `ms x (1 - achieved / ceiling)` of a phase, as `engine.profile --json` ranks it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flywheel.errors import RecordError
from flywheel.knob import Knob
from flywheel.lever import Lever, canonical

# How many residuals are looked at, and how many levers one profile may lead to.
TOPS = 3
MOST = 8
# A phase's whole time bounds what a lever there can save, unless it speeds up its neighbours too.
_SLACK = 1.25
_FALSIFY = "time per token does not fall, or sums come out in another order and tokens change"


@dataclass(frozen=True, slots=True)
class Residual:
    """One phase: its share of the step's time, and the share that is left to gain in it."""

    phase: str
    of_step: float
    to_gain: float


def ranked(document: Mapping[str, Any]) -> tuple[Residual, ...]:
    """The residuals of a profile, most to gain first; RecordError for what is no profile."""
    try:
        whole_ms = float(document["phases"][0]["ms"])
        found = [(str(r["name"]), float(r["ms"]), float(r["ms_to_gain"]))
                 for r in document["ranking"]]  # fmt: skip
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise RecordError(f"the profile holds no ranking: {error!r}") from error
    if not (found and 0 < whole_ms < float("inf")):
        raise RecordError("the profile ranks no phase")
    found.sort(key=lambda r: -r[2])
    return tuple(Residual(name, ms / whole_ms, left / whole_ms) for name, ms, left in found)


def levers(
    document: Mapping[str, Any], knobs: Sequence[Knob], known: Collection[Lever]
) -> tuple[tuple[Lever, str], ...]:
    """Levers that nobody has declared, each with the phase it comes from, most promising first.

    `known` are those declared or tried before. The profile says what the engine made of the
    incumbent's configuration, so that a knob is never turned to where it stands.
    """
    config = document.get("config")
    now = dict(config) if isinstance(config, Mapping) else {}
    taken = {lever.identity for lever in known}
    names = {lever.name for lever in known}
    found: list[tuple[Lever, str]] = []
    for residual in [r for r in ranked(document) if any(k.at(r.phase) for k in knobs)][:TOPS]:
        for lever in _at(residual, knobs, now):
            if lever.identity not in taken and lever.name not in names and len(found) < MOST:
                taken.add(lever.identity)
                names.add(lever.name)
                found.append((lever, residual.phase))
    return tuple(found)


def _at(residual: Residual, knobs: Sequence[Knob], now: Mapping[str, Any]) -> Iterator[Lever]:
    for knob in knobs:
        backend = now.get("backend")
        if not knob.at(residual.phase) or any(
            need in ("torch", "triton") and need != backend for need in knob.needs
        ):
            continue
        before = now.get(knob.field)
        for value in knob.values:
            if not knob.stands_at(value, before):
                yield _lever(knob, residual, knob.set_to(value, before))


def _lever(knob: Knob, residual: Residual, value: object) -> Lever:
    text = value if isinstance(value, str) else canonical(value)
    family = knob.field.replace("_", ".")
    return Lever(
        name=f"{family}.{text}",
        kind="config",
        change={knob.field: value},
        claim=f"{knob.claim}; {residual.to_gain * 100:.2g} % of a step is left to gain in "
        f"{residual.phase}",
        falsify=_FALSIFY,
        predicted_gain=min(residual.to_gain * knob.share, 0.5),
        ceiling=min(residual.of_step * _SLACK, 0.99),
        hot=knob.hot,
        family=family,
        slow=knob.slow,
        needs=knob.needs,
    )
