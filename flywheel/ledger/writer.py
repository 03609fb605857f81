"""Appending rows: what a transaction of the ledger is given."""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, Table, insert, select

from flywheel.errors import LedgerError
from flywheel.ledger import models

_LARGEST = 2**63


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


def _stored(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _plain(v) for k, v in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping | list | tuple):
        try:
            return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
        except ValueError as error:
            raise LedgerError(f"the ledger refused an entry: {error}") from error
    if isinstance(value, float) and not math.isfinite(value):
        # SQLite would store NaN as NULL, and nobody could tell it from a figure left out.
        raise LedgerError(f"the ledger refused an entry: {value} is no measured number")
    if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        raise LedgerError(f"the ledger refused an entry: {value} does not fit in 64 bits")
    return int(value) if isinstance(value, bool) else value
