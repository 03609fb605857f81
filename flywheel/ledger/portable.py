"""A whole ledger as one text file, and back: JSON lines, the same bytes for the same rows.

The first line is a header. Then, for each table, a line with its name and columns, and one line
with the values of each row, in the order of their keys; stored logs travel as base64. The last
line counts the rows and holds the sha256 of everything before it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sqlalchemy import LargeBinary, Table, insert, select

from flywheel.errors import LedgerError, UsageError
from flywheel.ledger import integrity, models, store
from flywheel.ledger.store import Ledger
from flywheel.ledger.writer import Writer

FORMAT = "flywheel-ledger"
_BATCH = 1000
# A block's rules look at how its runs ended, so those come first.
_LATE = ("block", "block_void")


@dataclass(frozen=True, slots=True)
class Portable:
    """What was written or read: `sha256` is over everything but the last line."""

    path: Path
    rows: int
    sha256: str


def export(ledger: Ledger, path: Path) -> Portable:
    """Write every row to `path`, which must not exist; whole, or not at all."""
    if path.exists():
        raise UsageError(f"{path} is there already; choose another name")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    digest, rows = hashlib.sha256(), 0
    try:
        with part.open("xb") as out:
            for line, is_row in _lines(ledger):
                out.write(line)
                digest.update(line)
                rows += is_row
            out.write(_line({"rows": rows, "sha256": digest.hexdigest()}))
            out.flush()
            os.fsync(out.fileno())
        os.link(part, path)
    except OSError as error:
        raise LedgerError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)
    return Portable(path, rows, digest.hexdigest())


def import_(source: Path, path: Path) -> Portable:
    """Make a ledger at `path` of an exported file; refused where a ledger has rows already.

    Raises LedgerError when the file is not whole or not ours, and then leaves nothing behind.
    """
    try:
        with source.open("rb") as stream:
            if path.exists():
                return _into_empty(stream, source, path)
            found: list[Portable] = []
            store.make(path, lambda writer: found.append(_fill(writer, stream, source)))
            return found[0]
    except OSError as error:
        raise LedgerError(f"{source} cannot be read: {error.strerror}") from error


def _into_empty(stream: BinaryIO, source: Path, path: Path) -> Portable:
    ledger = Ledger.open(path)
    try:
        with ledger.transaction() as writer:
            for table in models.metadata.sorted_tables:
                if writer.connection.execute(select(table).limit(1)).first() is not None:
                    raise UsageError(f"{path} has rows already; import makes a new ledger only")
            return _fill(writer, stream, source)
    finally:
        ledger.close()


def _lines(ledger: Ledger) -> Iterator[tuple[bytes, bool]]:
    """Every line but the last, and whether it is a row."""
    yield _line({"format": FORMAT, "schema": models.SCHEMA_VERSION}), False
    with ledger.reading() as connection:
        for table in _tables():
            columns = [c.name for c in table.columns]
            yield _line({"table": table.name, "columns": columns}), False
            keys = select(table).order_by(*table.primary_key)
            with connection.execute(keys.execution_options(yield_per=_BATCH)) as found:
                for row in found:
                    yield _line([_portable(value) for value in row]), True


def _tables() -> list[Table]:
    found = models.metadata.tables.values()
    return sorted(found, key=lambda table: (table.name in _LATE, table.name))


def _line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _portable(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _fill(writer: Writer, stream: BinaryIO, source: Path) -> Portable:
    """Append every row of an exported file; raises LedgerError unless it is whole."""
    # Rows come table by table, so a row may name one that is still to come.
    writer.connection.exec_driver_sql("PRAGMA defer_foreign_keys = ON")
    reader = _Reader(source)
    batch: list[Sequence[Any]] = []
    for line in stream:
        value = reader.read(line)
        if isinstance(value, list):
            batch.append(value)
        if batch and (not isinstance(value, list) or len(batch) == _BATCH):
            _append(writer, reader, batch)
            batch = []
        if isinstance(value, dict):
            reader.turn(value)
    reader.close()
    found = integrity.problems(writer.connection, quick=True)
    if found:
        raise LedgerError(f"{source} makes no whole ledger: {found[0]}")
    return Portable(source, reader.rows, reader.digest.hexdigest())


class _Reader:
    """Where one is in an exported file: its hash and its count so far, and the table at hand."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.digest = hashlib.sha256()
        self.rows = 0
        self.table: Table | None = None
        self.columns: list[str] = []
        self._started = self._ended = False

    def read(self, line: bytes) -> Any:
        """The value of the next line."""
        try:
            value = json.loads(line)
        except ValueError:
            raise self.broken("a line is not JSON") from None
        if self._ended:
            raise self.broken("something follows its last line")
        if isinstance(value, list):
            if self.table is None:
                raise self.broken("it is no exported ledger")
            self.rows += 1
        elif not isinstance(value, dict):
            raise self.broken("a line is neither a row nor a heading")
        if not (isinstance(value, dict) and "sha256" in value):
            self.digest.update(line)
        return value

    def turn(self, heading: dict[str, Any]) -> None:
        """Take in a line that is no row: the header, a table, or the end."""
        if not self._started:
            self._start(heading)
        elif "table" in heading:
            self.table = models.metadata.tables.get(str(heading["table"]))
            if self.table is None:
                raise self.broken(f"it has a table {heading['table']} that is none of ours")
            self.columns = [c.name for c in self.table.columns]
            if heading.get("columns") != self.columns:
                raise self.broken(f"its table {self.table.name} has other columns than ours")
        else:
            self._ended = True
            if heading != {"rows": self.rows, "sha256": self.digest.hexdigest()}:
                raise self.broken("it does not match its own hash")

    def _start(self, header: dict[str, Any]) -> None:
        if header.get("format") != FORMAT:
            raise self.broken("it is no exported ledger")
        if header.get("schema") != models.SCHEMA_VERSION:
            raise LedgerError(
                f"{self.source} has schema version {header.get('schema')}, and this flywheel "
                f"imports {models.SCHEMA_VERSION}: import it with the flywheel that wrote it"
            )
        self._started = True

    def close(self) -> None:
        """Raise unless the file came to its end."""
        if not self._ended:
            raise self.broken("it breaks off")

    def broken(self, why: str) -> LedgerError:
        """The error to raise."""
        return LedgerError(f"{self.source} cannot be imported: {why}")


def _append(writer: Writer, reader: _Reader, rows: Sequence[Sequence[Any]]) -> None:
    table = reader.table
    assert table is not None
    blobs = {c.name for c in table.columns if isinstance(c.type, LargeBinary)}
    try:
        values = [
            {
                name: base64.b64decode(value) if name in blobs else value
                for name, value in zip(reader.columns, row, strict=True)
            }
            for row in rows
        ]
    except (TypeError, ValueError):
        raise reader.broken(f"a row does not fit its table {table.name}") from None
    writer.connection.execute(insert(table), values)
