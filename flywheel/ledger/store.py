"""Opening the ledger and appending to it: transactions, nothing else.

SQLite in rollback-journal mode. A writing transaction begins with BEGIN IMMEDIATE, so two writers
queue at the start instead of failing in the middle; readers never block for long.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Table, create_engine, event, insert, select, text
from sqlalchemy.exc import DBAPIError

from flywheel.errors import LedgerError, LedgerVersionError
from flywheel.ledger import models

BUSY_TIMEOUT_MS = 30_000
# A verdict that was reported must survive a power cut.
SYNCHRONOUS = "FULL"
# Marks the file as a ledger of ours, in SQLite's own header field for it.
APPLICATION_ID = 0x464C5957


class Ledger:
    """One ledger file. Open it with `Ledger.open`; it holds no connection while idle."""

    def __init__(self, path: Path, engine: Engine) -> None:
        self.path = path
        self._engine = engine

    @classmethod
    def open(cls, path: str | Path, *, create: bool = True) -> Ledger:
        """Open the ledger, creating it when absent unless `create` is False.

        Raises LedgerError for a missing or foreign file, LedgerVersionError for a newer schema.
        """
        path = Path(path)
        if not path.exists() and not create:
            raise LedgerError(f"there is no ledger at {path}; run `flywheel run` first")
        if not path.parent.is_dir():
            raise LedgerError(f"the folder of the ledger, {path.parent}, does not exist")
        patience = {"timeout": BUSY_TIMEOUT_MS / 1000}
        engine = create_engine(f"sqlite:///{path}", connect_args=patience)
        event.listen(engine, "connect", _on_connect)
        ledger = cls(path, engine)
        ledger._migrate()
        return ledger

    def close(self) -> None:
        """Release the file."""
        self._engine.dispose()

    @contextmanager
    def transaction(self) -> Iterator[Writer]:
        """Append rows, all or none. Database refusals come out as LedgerError."""
        try:
            with self._engine.connect() as connection:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                try:
                    yield Writer(connection)
                except BaseException:
                    connection.exec_driver_sql("ROLLBACK")
                    raise
                connection.exec_driver_sql("COMMIT")
        except DBAPIError as error:
            raise LedgerError(f"{self.path} refused the entry: {error.orig}") from error

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A consistent, short read."""
        try:
            with self._engine.connect() as connection:
                connection.exec_driver_sql("BEGIN")
                try:
                    yield connection
                finally:
                    connection.exec_driver_sql("ROLLBACK")
        except DBAPIError as error:
            raise LedgerError(f"{self.path} cannot be read: {error.orig}") from error

    def _migrate(self) -> None:
        with self.reading() as connection:
            empty = _is_empty(connection, self.path)
        if not empty:
            return
        with self.transaction() as writer:
            connection = writer.connection
            # Another process may have created the tables while this one waited for the lock.
            if _is_empty(connection, self.path):
                models.metadata.create_all(connection)
                for trigger in models.triggers():
                    connection.exec_driver_sql(trigger)
                connection.exec_driver_sql(f"PRAGMA user_version = {models.SCHEMA_VERSION}")
                connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")


def _is_empty(connection: Connection, path: Path) -> bool:
    """Whether the file has no tables yet; raises unless it is a ledger that this version reads."""
    version = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
    owner = connection.exec_driver_sql("PRAGMA application_id").scalar_one()
    tables = connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar_one()
    _check_version(path, version, owner, tables)
    return not tables


def _check_version(path: Path, version: int, owner: int, tables: int) -> None:
    if version > models.SCHEMA_VERSION:
        raise LedgerVersionError(
            f"{path} has schema version {version}; this flywheel reads up to "
            f"{models.SCHEMA_VERSION}: use the newer flywheel that wrote it"
        )
    if tables and (owner != APPLICATION_ID or version < 1):
        raise LedgerError(f"{path} is an SQLite file, but not a ledger of flywheel")


def _on_connect(connection: sqlite3.Connection, _record: object) -> None:
    # Autocommit at the driver: transactions begin where we say, not where Python guesses.
    connection.isolation_level = None
    for pragma in (
        f"busy_timeout = {BUSY_TIMEOUT_MS}",
        "journal_mode = DELETE",
        "foreign_keys = ON",
        f"synchronous = {SYNCHRONOUS}",
    ):
        connection.execute(f"PRAGMA {pragma}")


class Writer:
    """Appends rows inside one transaction. `connection` serves reads in the same transaction."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def append(self, table: Table, **values: Any) -> int:
        """One row; mappings and sequences are stored as JSON. Returns its integer key, if any."""
        made = self.connection.execute(insert(table).values(**_stored(values)))
        return int(made.lastrowid or 0)

    def append_all(self, table: Table, rows: Iterable[Mapping[str, Any]]) -> None:
        """Many rows of one shape."""
        if stored := [_stored(row) for row in rows]:
            self.connection.execute(insert(table), stored)

    def append_once(self, table: Table, key: str, **values: Any) -> bool:
        """One row unless a row with that key is there already; says whether it was added."""
        column = table.c[key]
        found = self.connection.execute(select(column).where(column == values[key])).first()
        if found is None:
            self.append(table, **values)
        return found is None

    def append_log(self, run_id: str, log_text: str) -> str:
        """The whole text of a log, compressed; returns its sha256."""
        raw = log_text.encode("utf-8", "surrogateescape")
        digest = hashlib.sha256(raw).hexdigest()
        self.append(
            models.log,
            run_id=run_id,
            sha256=digest,
            size_bytes=len(raw),
            text_zlib=zlib.compress(raw, 9),
        )
        return digest


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
    """Raise LedgerError unless SQLite finds the file whole and every reference in place."""
    with ledger.reading() as connection:
        found = connection.execute(text("PRAGMA integrity_check")).scalars().all()
        dangling = connection.execute(text("PRAGMA foreign_key_check")).all()
        if found != ["ok"] or dangling:
            raise LedgerError(f"{ledger.path} is damaged: {'; '.join(found)}")
        for run_id, manifest in connection.execute(select(models.run.c.id, models.run.c.manifest)):
            try:
                json.loads(manifest)
            except ValueError:
                raise LedgerError(
                    f"{ledger.path} is damaged: the manifest of run {run_id} is not JSON"
                ) from None
            log_text(connection, run_id)


def _stored(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _plain(v) for k, v in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return int(value) if isinstance(value, bool) else value
