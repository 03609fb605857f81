"""The ledger at the start of a session of the loop: proved whole, then copied, then appended to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flywheel.errors import LedgerError
from flywheel.ledger import backup, integrity
from flywheel.ledger.backup import Backup
from flywheel.ledger.store import Ledger


@dataclass(frozen=True, slots=True)
class Opening:
    """A ledger to append to. `warnings` are sentences about what could not be done for it."""

    ledger: Ledger
    backup: Backup | None
    warnings: tuple[str, ...] = ()


def open_for_writing(path: Path, *, now_utc: str) -> Opening:
    """Open the ledger, or make it; prove that it is whole and copy it into its backups.

    Raises LedgerError (see `Ledger.open`) and when the file, its references or its rules are
    damaged. A copy that cannot be made is a warning: a full disk must not cost the night.
    """
    missed = lost(path)
    ledger = Ledger.open(path)
    try:
        with ledger.reading() as connection:
            found = integrity.problems(connection, quick=True)
        if found:
            raise LedgerError(f"{path} is damaged: {found[0]}; {advice(path)}")
        try:
            made, uncopied = backup.back_up(path, now_utc), None
        except LedgerError as error:
            made, uncopied = None, f"no copy of the ledger was made: {error}"
        return Opening(ledger, made, tuple(one for one in (missed, uncopied) if one))
    except BaseException:
        ledger.close()
        raise


def lost(path: Path) -> str | None:
    """One sentence when no ledger is there but copies of one are; None when all is well."""
    there = () if path.exists() else backup.copies(path)
    if not there:
        return None
    return (
        f"{path} is gone, but copies of it are there; the newest is {there[-1]}: put it back, or "
        "`flywheel ledger rebuild --from runs/`, or begin a new one"
    )


def require_rules(ledger: Ledger) -> None:
    """Raise LedgerError unless every rule of the ledger is in force: quick on any size."""
    with ledger.reading() as connection:
        found = integrity.broken_rules(connection)
    if found:
        raise LedgerError(f"{ledger.path} is damaged: {found[0]}; {advice(ledger.path)}")


def advice(path: Path) -> str:
    """What to do about a damaged ledger."""
    there = backup.copies(path)
    if not there:
        return "`flywheel ledger rebuild --from runs/` makes it anew from the run directories"
    return (
        f"keep it, and go on with a copy: the newest is {there[-1]} "
        "(`flywheel ledger verify --ledger` on it first)"
    )
