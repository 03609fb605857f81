"""From a diff that somebody offers, a person or a program, to a lever; or why it is none."""

from __future__ import annotations

from pathlib import Path

from flywheel.errors import FlywheelError, LeverError
from flywheel.lever import Lever
from flywheel.patch import source
from flywheel.patch.repository import Repository

FAMILY = "patch"
# What would show that a patch is not faster, where nobody says anything else.
FALSIFY = "time per token does not fall"


def lever(patch: source.Patch, name: str, claim: str, falsify: str, gain: float) -> Lever:
    """The lever of an admitted patch. LeverError when a word of it will not do."""
    return Lever(
        name=name, kind="patch", change={"patch": patch.sha256}, claim=claim,
        falsify=falsify or FALSIFY, predicted_gain=gain, hot=False, family=FAMILY,
    )  # fmt: skip


def taken(
    ledger: Path, cwd: Path, diff: str, *, name: str, claim: str, falsify: str, gain: float
) -> Lever:
    """Admit a diff against what is checked out, and keep it beside the ledger.

    The lever is for the caller to declare. LeverError says why there is none.
    """
    try:
        repository = Repository.of_engine(cwd)
        patch = source.onto(repository, repository.head(), diff)
        reasons = source.reasons(repository, patch)
    except FlywheelError as error:
        raise LeverError(str(error).rstrip(".")) from error
    if reasons:
        raise LeverError("the patch is not admitted: " + "; ".join(map(str, reasons[:5])))
    made = lever(patch, name, claim, falsify, gain)
    source.keep(ledger, patch)
    return made
