"""Copies of the ledger beside it: whole ones only, the newest few, none of what is unchanged."""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from flywheel.errors import LedgerError, LedgerPlaceError
from flywheel.ledger.refusals import refusal

KEPT = 7
PATIENCE_S = 30.0
_HEADER_BYTES = 100
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Backup:
    """The newest copy; `made` is False when it was there already, for nothing had changed."""

    path: Path
    made: bool


def folder(ledger: Path) -> Path:
    """Where a ledger's copies lie."""
    return ledger.with_name(ledger.name + ".backups")


def copies(ledger: Path) -> tuple[Path, ...]:
    """The dated copies, oldest first; those made before a migration are not among them."""
    return tuple(sorted(folder(ledger).glob("[0-9]*Z*.db")))


def back_up(ledger: Path, now_utc: str, *, kept: int = KEPT) -> Backup:
    """Copy the ledger unless the newest copy holds the same; keep the newest `kept`.

    Raises LedgerError when there is no room, or the ledger cannot be read. No part of a copy stays.
    """
    stamp = datetime.fromisoformat(now_utc).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    newest = copies(ledger)[-1:]
    made = _copy(ledger, stamp, unlike=newest[0] if newest else None)
    if made is None:
        return Backup(newest[0], made=False)
    for old in copies(ledger)[:-kept]:
        old.unlink(missing_ok=True)
    return Backup(made, made=True)


def keep_old(ledger: Path, version: int) -> None:
    """The copy made before a migration; it stays until a person removes it."""
    _copy(ledger, f"schema-{version}")


def _copy(ledger: Path, name: str, *, unlike: Path | None = None) -> Path | None:
    """A whole, checked copy under the first free name; None when it would be the same again."""
    into = folder(ledger)
    part = into / f".{name}.{os.getpid()}.part"
    try:
        into.mkdir(exist_ok=True)
        with closing(sqlite3.connect(part)) as copy:
            copy_pages(ledger, copy)
            found = copy.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise LedgerError(f"{ledger} is damaged and was not copied: {found}")
        if unlike is not None and _same(part, unlike):
            return None
        _sync(part)
        return _named(part, into, name)
    except sqlite3.Error as error:
        raise refusal(ledger, error, f"copied into {into}") from error
    except OSError as error:
        readonly = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        kind = LedgerPlaceError if readonly else LedgerError
        raise kind(f"{ledger} cannot be copied into {into}: {error.strerror}") from error
    finally:
        with suppress(OSError):
            part.unlink()


def _named(part: Path, into: Path, name: str) -> Path:
    for number in range(1000):
        path = into / (f"{name}.db" if number == 0 else f"{name}_{number:03d}.db")
        try:
            os.link(part, path)
        except FileExistsError:
            continue
        _sync(into)
        return path
    raise LedgerError(f"{into} holds too many copies of one moment; remove some")


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def copy_pages(ledger: Path, into: sqlite3.Connection) -> None:
    """Copy every page of the ledger, as one transaction left it; sqlite3.Error when it cannot."""
    uri = f"file:{quote(str(ledger.absolute()))}?mode=rw"
    source = sqlite3.connect(uri, uri=True, timeout=PATIENCE_S, isolation_level=None)
    with closing(source):
        # The lock is taken here, with patience: the copying itself would wait without end.
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM sqlite_master").fetchone()
        source.backup(into)


def _same(one: Path, other: Path) -> bool:
    """Whether two copies hold the same pages; their headers count changes, and so differ.

    Never for a ledger in use: to close a file that SQLite has open drops SQLite's locks on it.
    """
    with one.open("rb") as a, other.open("rb") as b:
        a.seek(_HEADER_BYTES)
        b.seek(_HEADER_BYTES)
        while (chunk := a.read(_CHUNK_BYTES)) == b.read(_CHUNK_BYTES):
            if not chunk:
                return True
    return False
