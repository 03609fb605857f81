"""Before a night begins: is the ledger whole, and is there a copy of it?"""

from __future__ import annotations

from collections.abc import Callable

from flywheel.errors import LedgerBusy, LedgerError, Refused
from flywheel.ledger import backup, integrity
from flywheel.ledger.store import Ledger
from flywheel.wishes import Wish, Wishes


def prove(
    ledger: Ledger, wishes: Wishes, *, now_utc: str, say: Callable[[str], None]
) -> Wish | None:
    """Refused unless the ledger is whole; then the copy. A wish when told to stop."""
    found = wishes.during(lambda: _problems(ledger))
    if isinstance(found, Wish):
        return found
    if found:
        # Nothing is written to a damaged file, not even a halt: the next start finds it again.
        raise Refused(
            f"{ledger.path} is damaged: {found[0]}. Keep it, and go on with the newest copy in "
            f"{backup.folder(ledger.path)} that flywheel ledger verify finds whole."
        )

    def copy() -> None:
        try:
            backup.back_up(ledger.path, now_utc)
        except LedgerError as error:
            say(f"the ledger was not copied: {error}")

    made = wishes.during(copy)
    return made if isinstance(made, Wish) else None


def _problems(ledger: Ledger) -> tuple[str, ...]:
    try:
        with ledger.reading() as connection:
            return integrity.problems(connection, quick=True)
    except LedgerBusy:
        raise
    except LedgerError as error:
        return (str(error),)
