"""Who is asked for levers next, how often, and when to leave alone who is at its limit. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from flywheel.box.clock import utc_text
from flywheel.ledger.rows import AttemptRow

ANSWERED, FAILED, LIMITED, STOPPED = "answered", "failed", "limited", "stopped"


@dataclass(frozen=True, slots=True)
class Terms:
    """The limits of asking; times in seconds.

    Each proposer may be asked `attempts` times a campaign, each time for `timeout_s` at most. It
    is left out of a phase after `failures` failures in it. At a usage limit, which is no attempt,
    it is left alone for as long as it says, or for `pauses_s`, the last of these again and again;
    after `limits` times in a row it is left out. `network` and the `environment` named are handed
    over.
    """

    attempts: int = 12
    timeout_s: float = 600.0
    failures: int = 2
    limits: int = 6
    pauses_s: tuple[float, ...] = (60.0, 300.0, 900.0)
    network: bool = False
    environment: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Asking:
    """Who may be asked, by name, and the limits of it."""

    proposers: tuple[str, ...]
    terms: Terms = Terms()


@dataclass(frozen=True, slots=True)
class Ask:
    """That proposer is to be asked now."""

    proposer: str


@dataclass(frozen=True, slots=True)
class Later:
    """Nobody can be asked before that moment; `why` names who is waited for."""

    not_before_utc: str
    why: str


@dataclass(frozen=True, slots=True)
class Nobody:
    """No proposer is left to be asked in this phase, and why."""

    why: str


def counted(row: AttemptRow) -> bool:
    """Whether it is one of the attempts that a proposer has: a limit or a stop is not."""
    return row.outcome in (ANSWERED, FAILED)


def following(
    past: Sequence[AttemptRow],
    phase: int,
    proposers: Sequence[str],
    terms: Terms,
    now_utc: str | None,
) -> Ask | Later | Nobody:
    """What to do in that phase, by the attempts of the campaign so far, oldest first.

    Who was asked least goes first. Without `now_utc` every pause is over.
    """
    if not proposers:
        return Nobody("nobody is there to propose a lever")
    given_up, waits = [], []
    for name in sorted(proposers, key=lambda n: sum(a.proposer == n and counted(a) for a in past)):
        mine = [row for row in past if row.proposer == name]
        if (why := _left_out(name, mine, phase, terms)) is not None:
            given_up.append(why)
        elif (until := _paused(mine, terms)) is not None and until > (now_utc or until):
            waits.append(Later(until, f"{name} is at its usage limit until {until}"))
        else:
            return Ask(name)
    return min(waits, key=lambda w: w.not_before_utc) if waits else Nobody("; ".join(given_up))


def _left_out(
    name: str, mine: Sequence[AttemptRow], phase: int, terms: Terms
) -> str | None:
    """Why a proposer is not asked again in this phase; None when it may be."""
    attempts = [row for row in mine if counted(row)]
    here = [row for row in attempts if row.phase == phase]
    if here and here[-1].outcome == ANSWERED:
        return f"{name} proposed nothing new"
    if len(here) >= terms.failures:
        return f"{name} failed: {here[-1].detail}"
    if len(attempts) >= terms.attempts:
        return f"{name} had its {terms.attempts} attempts"
    if _limits([row for row in mine if row.phase == phase]) >= terms.limits:
        return f"{name} is at its usage limit"
    return None


def _limits(mine: Sequence[AttemptRow]) -> int:
    """How often in a row it was at its limit, up to now."""
    found = 0
    for row in reversed(mine):
        if row.outcome != LIMITED:
            break
        found += 1
    return found


def _paused(mine: Sequence[AttemptRow], terms: Terms) -> str | None:
    """Until when a proposer is left alone; None when it is not at a limit."""
    limits = _limits(mine)
    if not limits:
        return None
    pause_s = mine[-1].retry_s
    if pause_s is None:
        pause_s = terms.pauses_s[min(limits, len(terms.pauses_s)) - 1]
    began = datetime.fromisoformat(mine[-1].created_utc)
    return utc_text(began + timedelta(seconds=min(pause_s, 86_400.0)))
