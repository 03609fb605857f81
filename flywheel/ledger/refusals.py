"""What SQLite refused, as one sentence that says what to do.  Standard library only."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from flywheel.errors import LedgerBusy, LedgerError, LedgerPlaceError

_PRIMARY = 0xFF


def refusal(path: Path, error: Exception, doing: str) -> LedgerError:
    """The error to raise for one of SQLite's, wrapped or not; `doing` is `read` or `written to`."""
    origin = getattr(error, "orig", error)
    code = int(getattr(origin, "sqlite_errorcode", 0)) & _PRIMARY
    if code == sqlite3.SQLITE_BUSY:
        return LedgerBusy(
            f"{path} is locked by another process; nothing was lost: try again once it has finished"
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return LedgerPlaceError(
            f"{path} cannot be {doing}: it or its folder is read-only; make both writable"
        )
    if code == sqlite3.SQLITE_CONSTRAINT:
        return LedgerError(f"{path} refused the entry: {origin}")
    said = {
        sqlite3.SQLITE_FULL: "its disk is full; nothing was lost: free some space and try again",
        sqlite3.SQLITE_IOERR: f"its disk fails ({origin}); nothing was entered: look at the disk",
        sqlite3.SQLITE_CANTOPEN: "it, or the journal beside it, cannot be opened; "
        "make the file and its folder readable and writable",
        sqlite3.SQLITE_CORRUPT: f"it is damaged ({origin}); keep it, and go on with the newest "
        f"copy in {path}.backups that `flywheel ledger verify` finds whole",
        sqlite3.SQLITE_NOTADB: "it is not an SQLite database",
    }
    return LedgerError(f"{path} cannot be {doing}: {said.get(code, origin)}")
