"""Which files are ledgers that this version reads.  Standard library only."""

from __future__ import annotations

from pathlib import Path

from flywheel.errors import LedgerError, LedgerVersionError

VERSION = 10
# Marks the file as a ledger of ours, in SQLite's own header field for it.
APPLICATION_ID = 0x464C5957
QUESTIONS = (
    "PRAGMA user_version", "PRAGMA application_id", "SELECT count(*) FROM sqlite_master",
)  # fmt: skip


def checked_version(path: Path, version: int, owner: int, tables: int) -> int:
    """The schema version by the answers to `QUESTIONS`, 0 for a file without tables.

    Raises LedgerError unless it is a ledger that this version of flywheel reads.
    """
    if tables and (owner != APPLICATION_ID or version < 1):
        raise LedgerError(f"{path} is an SQLite file, but not a ledger of flywheel")
    if version > VERSION:
        raise LedgerVersionError(
            f"{path} has schema version {version}; this flywheel reads up to {VERSION}: "
            "use the newer flywheel that wrote it"
        )
    return version if tables else 0
