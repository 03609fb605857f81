"""Opening the ledger and appending to it: transactions, nothing else.

SQLite in rollback-journal mode. A writing transaction begins with BEGIN IMMEDIATE, so two writers
queue at the start instead of failing in the middle; readers never block for long.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import Pool, QueuePool, StaticPool

from flywheel.errors import LedgerError
from flywheel.ledger import backup, integrity, migrations, models, place, schema
from flywheel.ledger.refusals import refusal
from flywheel.ledger.triggers import triggers
from flywheel.ledger.writer import Writer

# How long a lock is waited for, and how long without asking whether one still wants to wait.
BUSY_PATIENCE_S = 30.0
BUSY_SLICE_MS = 250
# A verdict that was reported must survive a power cut, the removal of its journal included.
SYNCHRONOUS = "EXTRA"


class Ledger:
    """One ledger file: `Ledger.open` to append to it, `Ledger.read` to look at it."""

    def __init__(self, path: Path, engine: Engine, *, writable: bool) -> None:
        self.path = path
        self._engine = engine
        self._file = _inode(path) if writable else None
        # Asked while another process holds the lock; False gives up with LedgerBusy at once.
        self.may_wait: Callable[[], bool] = lambda: True

    @classmethod
    def open(cls, path: str | Path, *, create: bool = True) -> Ledger:
        """Open the ledger for appending, creating it when absent unless `create` is False.

        A ledger of an older schema is copied into its folder of backups and brought up to date.
        Raises LedgerError for a missing or foreign file, LedgerVersionError for a newer schema,
        LedgerPlaceError where nothing can be kept, LedgerBusy when another process holds the lock.
        """
        path = Path(path)
        if not path.exists() and not create:
            raise _missing(path)
        place.check(path)
        if not path.exists():
            with suppress(FileExistsError):
                make(path)
        ledger = cls(path, _file_engine(path), writable=True)
        try:
            ledger._bring_up_to_date()
        except BaseException:
            ledger.close()
            raise
        return ledger

    @classmethod
    def read(cls, path: str | Path, *, private: bool = False) -> Ledger:
        """Open the ledger to look at it; the file is left as it is, whatever its schema.

        A `private` one is a copy in memory: a look that takes minutes keeps no writer waiting.
        Raises LedgerError for a missing or foreign file, LedgerVersionError for a newer schema.
        """
        path = Path(path)
        if not path.exists():
            raise _missing(path)
        ledger = cls(path, _file_engine(path), writable=False)
        try:
            with ledger.reading() as connection:
                version = schema_version(connection, path)
            if private or version < models.SCHEMA_VERSION:
                ledger.close()
                ledger._engine = _memory_engine(path)
            if version < models.SCHEMA_VERSION:
                with ledger._writing() as writer:
                    _to_newest(writer.connection, version)
        except BaseException:
            ledger.close()
            raise
        return ledger

    def close(self) -> None:
        """Release the file."""
        self._engine.dispose()

    @contextmanager
    def transaction(self) -> Iterator[Writer]:
        """Append rows, all or none. Database refusals come out as LedgerError."""
        if self._file is None:
            raise LedgerError(f"{self.path} was opened to be read")
        if _inode(self.path) != self._file:
            raise LedgerError(
                f"{self.path} was moved or replaced while it was in use; put it back, or start anew"
            )
        with self._writing() as writer:
            yield writer

    @contextmanager
    def _writing(self) -> Iterator[Writer]:
        try:
            with self._engine.connect() as connection:
                self._patiently(connection, "BEGIN IMMEDIATE")
                try:
                    yield Writer(connection)
                    self._patiently(connection, "COMMIT")
                except BaseException:
                    _roll_back(connection)
                    raise
        except DBAPIError as error:
            raise refusal(self.path, error, "written to") from error

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A consistent, short read."""
        try:
            with self._engine.connect() as connection:
                connection.exec_driver_sql("BEGIN")
                try:
                    # The first read takes the lock that the rest of them share.
                    self._patiently(connection, "SELECT 1 FROM sqlite_master LIMIT 1")
                    yield connection
                finally:
                    _roll_back(connection)
        except DBAPIError as error:
            raise refusal(self.path, error, "read") from error

    def _patiently(self, connection: Connection, statement: str) -> None:
        """Run a statement that needs a lock; wait for the lock as long as one may."""
        until_s = time.monotonic() + BUSY_PATIENCE_S
        while True:
            try:
                connection.exec_driver_sql(statement).close()
            except DBAPIError as error:
                code = int(getattr(error.orig, "sqlite_errorcode", 0))
                patient = time.monotonic() < until_s and self.may_wait()
                if code & 0xFF != sqlite3.SQLITE_BUSY or not patient:
                    raise
            else:
                return

    def _bring_up_to_date(self) -> None:
        with self.reading() as connection:
            version = schema_version(connection, self.path)
        if version == models.SCHEMA_VERSION:
            return
        if version:
            backup.keep_old(self.path, version)
        with self.transaction() as writer:
            # Another process may have done it while this one waited for the lock.
            version = schema_version(writer.connection, self.path)
            _to_newest(writer.connection, version)


def _missing(path: Path) -> LedgerError:
    return LedgerError(f"there is no ledger at {path}; run `flywheel run` first")


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _roll_back(connection: Connection) -> None:
    """End the transaction, unless SQLite has done so itself, as it does when a disk is full."""
    raw = connection.connection.dbapi_connection
    if raw is not None and raw.in_transaction:
        connection.exec_driver_sql("ROLLBACK")


def _file_engine(path: Path, mode: str = "rw") -> Engine:
    """Connections to the file. Mode rw: a file that has gone is an error, never an empty one."""
    return _engine(lambda: _connect(path, mode), QueuePool)


def _memory_engine(path: Path) -> Engine:
    """One connection to a private copy of the file in memory."""

    def connect() -> sqlite3.Connection:
        copy = sqlite3.connect(":memory:", check_same_thread=False)
        backup.copy_pages(path, copy)
        return copy

    return _engine(connect, StaticPool)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"file:{quote(str(path.absolute()))}?mode={mode}"
    return sqlite3.connect(uri, uri=True, timeout=BUSY_SLICE_MS / 1000, check_same_thread=False)


def _engine(connect: Callable[[], sqlite3.Connection], pool: type[Pool]) -> Engine:
    engine = create_engine("sqlite://", creator=connect, poolclass=pool)
    event.listen(engine, "connect", _on_connect)
    return engine


def _on_connect(connection: sqlite3.Connection, _record: object) -> None:
    # Autocommit at the driver: transactions begin where we say, not where Python guesses.
    connection.isolation_level = None
    for pragma in (
        f"busy_timeout = {BUSY_PATIENCE_S * 1000:.0f}",
        "journal_mode = DELETE",
        "foreign_keys = ON",
        f"synchronous = {SYNCHRONOUS}",
        f"busy_timeout = {BUSY_SLICE_MS}",
    ):
        connection.execute(f"PRAGMA {pragma}")


def make(path: Path, fill: Callable[[Writer], object] = lambda writer: None) -> None:
    """Put a new ledger, filled in one transaction, under its name: whole, or not at all.

    FileExistsError when the name is taken by then, as by another process that was first.
    """
    place.check(path)
    part = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    ledger = Ledger(path, _file_engine(part, "rwc"), writable=False)
    try:
        with ledger._writing() as writer:
            _to_newest(writer.connection, 0)
            fill(writer)
        ledger.close()
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError as error:
        raise LedgerError(f"{path} cannot be created: {error.strerror}") from error
    finally:
        ledger.close()
        for left in (part, part.with_name(part.name + "-journal")):
            left.unlink(missing_ok=True)


def schema_version(connection: Connection, path: Path) -> int:
    """The file's schema version, 0 for a file without tables.

    Raises LedgerError unless it is a ledger that this version of flywheel reads.
    """
    answers = [int(connection.exec_driver_sql(one).scalar_one()) for one in schema.QUESTIONS]
    return schema.checked_version(path, *answers)


def _to_newest(connection: Connection, version: int) -> None:
    """Make the tables, or bring those of an older version up, inside a transaction."""
    if version:
        migrations.migrate(connection, version, models.SCHEMA_VERSION)
        return
    models.metadata.create_all(connection)
    for trigger in triggers():
        connection.exec_driver_sql(trigger)
    connection.exec_driver_sql(f"PRAGMA user_version = {models.SCHEMA_VERSION}")
    connection.exec_driver_sql(f"PRAGMA application_id = {schema.APPLICATION_ID}")


def log_text(connection: Connection, run_id: str) -> str | None:
    """The stored text of a run's log; None when it left none. Raises LedgerError when damaged."""
    row = connection.execute(
        select(models.log.c.sha256, models.log.c.text_zlib).where(models.log.c.run_id == run_id)
    ).first()
    if row is None:
        return None
    try:
        raw = zlib.decompress(row.text_zlib)
    except zlib.error as error:
        raise LedgerError(f"the stored log of run {run_id} is damaged: {error}") from error
    if hashlib.sha256(raw).hexdigest() != row.sha256:
        raise LedgerError(f"the stored log of run {run_id} does not match its hash")
    return raw.decode("utf-8", "surrogateescape")


def check_integrity(ledger: Ledger) -> None:
    """Raise LedgerError unless the file, its references, its rules and its logs are whole."""
    with ledger.reading() as connection:
        found = integrity.problems(connection)
        if not found:
            found = integrity.damaged_documents(connection)
        if found:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            raise LedgerError(f"{ledger.path} is damaged: {found[0]}{more}")
        for run_id in connection.execute(select(models.log.c.run_id)).scalars():
            log_text(connection, run_id)
