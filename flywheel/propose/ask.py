"""One attempt: the brief goes out, an answer comes back, and what it offers is admitted or refused.

A wrong form is told back once. Everything that was said goes into the transcript, whatever came of
it. Recording the outcome in the ledger is the caller's.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from flywheel import declared, priority
from flywheel.box.clock import Clock
from flywheel.files import dump
from flywheel.loop.wishes import Wish, Wishes
from flywheel.propose import brief as briefs, external, quarantine, transcript, workplace
from flywheel.propose.admission import Grounds, TakePatch, Verdict, judge, no_patches
from flywheel.propose.answer import Answer, read
from flywheel.propose.attempt import ANSWERED, FAILED, LIMITED, STOPPED, Terms
from flywheel.propose.external import Exchange
from flywheel.propose.proposer import Proposer

_PACKAGES = ("kernels", "engine", "flywheel", "experiments")
_ROOT = Path(__file__).resolve().parents[2]
PROBE_S = 20.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an attempt. `tampered` names files that it changed and must not have."""

    outcome: str
    detail: str
    verdicts: tuple[Verdict, ...] = ()
    retry_s: float | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    tampered: tuple[str, ...] = ()
    wish: Wish | None = None
    wall_s: float = 0.0
    transcript: str = ""
    sha256: str = ""
    cage: tuple[str, ...] = ()


def ask(
    proposer: Proposer,
    brief: Mapping[str, Any],
    grounds: Grounds,
    terms: Terms,
    ledger: Path,
    *,
    clock: Clock,
    wishes: Wishes | None = None,
    take_patch: TakePatch = no_patches,
    outer: Mapping[str, str] | None = None,
) -> Outcome:
    """Ask a proposer once, and judge what it answers.

    Raises UsageError for a variable that is to be handed over and is not set, RecordError where no
    folder can be made beside the ledger.
    """
    variables_of = external.outer_environment() if outer is None else outer
    folder = workplace.new(ledger.parent.resolve() / transcript.FOLDER)
    variables = external.environment(folder / workplace.WORK, terms, variables_of)
    with workplace.lent(folder) as work:
        # The environment too: whatever is installed there runs in the loop and in the engine.
        shielded = (ledger.parent.resolve(), _ROOT, Path(sys.prefix))
        holds = cage_holds(work, terms, shielded, variables)
        guarded = [_ROOT / name for name in _PACKAGES]
        files = [declared.path_for(ledger), ledger.parent / priority.FILE]
        before = quarantine.fingerprints(guarded, files)
        argv = external.caged(proposer.argv, work, terms, shielded)
        began_s = clock.monotonic_s()
        handed = {name: variables[name] for name in terms.environment}
        said, answer = _exchanges(argv, brief, work, variables, handed, terms, clock, wishes)
        tampered = quarantine.changed(before, quarantine.fingerprints(guarded, files))
        found = _judged(said, answer, grounds, take_patch, tampered)
        document = {
            "proposer": proposer.name, "argv": list(proposer.argv), "outcome": found.outcome,
            "detail": found.detail, "cage": list(holds), "network": terms.network,
            "environment": list(terms.environment), "tampered": list(tampered),
            "exchanges": [{**asdict(one), "wish": None} for one in said],
            "verdicts": [one.to_json() for one in found.verdicts],
        }  # fmt: skip
        digest = transcript.write(folder, document, handed)
    where = (folder / transcript.FILE).relative_to(ledger.parent.resolve())
    return Outcome(
        found.outcome, found.detail, found.verdicts, found.retry_s, found.usage, tampered,
        said[-1].wish, clock.monotonic_s() - began_s, str(where), digest, holds,
    )  # fmt: skip


def cage_holds(
    work: Path, terms: Terms, shielded: Sequence[Path], variables: Mapping[str, str]
) -> tuple[str, ...]:
    """What of the cage this kernel allows, in words; asked before the proposer is let in."""
    argv = [*external.caged((), work, terms, shielded)[:-1], "--probe"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired, ValueError):
        told = json.loads(subprocess.run(
            argv, cwd=work, env=dict(variables), capture_output=True, timeout=PROBE_S, check=True,
        ).stdout)  # fmt: skip
        return tuple(str(one) for one in told)
    return ()


def _exchanges(
    argv: Sequence[str],
    brief: Mapping[str, Any],
    work: Path,
    variables: Mapping[str, str],
    handed: Mapping[str, str],
    terms: Terms,
    clock: Clock,
    wishes: Wishes | None,
) -> tuple[tuple[Exchange, ...], Answer | None]:
    """The exchanges that were had, and the answer of the last; None where there is none.

    The variables `handed` over are out of what was said before anybody reads it: words of it come
    into the ledger, onto terminals and into the next brief.
    """
    until_s = clock.monotonic_s() + terms.timeout_s

    def one(document: Mapping[str, Any]) -> tuple[Exchange, Answer | None]:
        said = external.exchange(
            argv, dump(document), work, variables=variables, clock=clock, wishes=wishes,
            timeout_s=max(0.0, until_s - clock.monotonic_s()),
        )  # fmt: skip
        said = replace(
            said, stdout=transcript.without(said.stdout, handed),
            stderr=transcript.without(said.stderr, handed),
        )  # fmt: skip
        whole = not said.ended and said.status == 0
        return said, read(said.stdout) if whole else None

    first, answer = one(brief)
    if answer is None or not answer.errors:
        return (first,), answer
    second, better = one(briefs.told_back(brief, first.stdout, answer.errors))
    # Who fails at the second try is taken by what was right at the first.
    return (first, second), better if better is not None else answer


def _judged(
    said: Sequence[Exchange],
    answer: Answer | None,
    grounds: Grounds,
    take_patch: TakePatch,
    tampered: Sequence[str],
) -> Outcome:
    last = said[-1]
    if tampered:
        named = ", ".join(tampered[:3]) + (" and more" if len(tampered) > 3 else "")
        return Outcome(FAILED, f"it changed what it must not touch: {named}")
    if last.wish is not None:
        return Outcome(STOPPED, last.ended)
    if answer is None and last.status == external.TEMPORARY and not last.ended:
        return Outcome(LIMITED, f"it is at a usage limit: {last.last_words}")
    if answer is None:
        why = last.ended or f"it left with status {last.status}: {last.last_words}"
        return Outcome(FAILED, why)
    if answer.limited is not None:
        limited = answer.limited
        return Outcome(LIMITED, limited.why, retry_s=limited.retry_after_s)
    verdicts = judge(answer, grounds, take_patch)
    if answer.errors and not any(one.offer is not None for one in answer.items):
        return Outcome(FAILED, f"its answer has the wrong form: {answer.errors[0]}", verdicts)
    taken = sum(one.admitted for one in verdicts)
    detail = f"{taken} of {len(verdicts)} proposed levers admitted"
    return Outcome(ANSWERED, detail, verdicts, usage=answer.usage)
