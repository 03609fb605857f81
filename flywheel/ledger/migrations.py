"""From each schema version to the next, in order; never edited once a version was released.

The SQL is frozen text and not derived from the tables of today, for these will change again. A
test brings a stored old file up and compares its schema with that of a new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sqlalchemy import Connection

from flywheel.ledger import schema

_FOLDER = Path(__file__).parent / "sql"
# The file that brings a ledger to this version from the one before.
STEPS: Mapping[int, Path] = {
    version: _FOLDER / f"to-{version}.sql" for version in range(2, schema.VERSION + 1)
}


def migrate(connection: Connection, version: int, wanted: int) -> None:
    """Bring the tables from `version` to `wanted`, inside the caller's transaction."""
    for step in range(version + 1, wanted + 1):
        for statement in statements(STEPS[step].read_text(encoding="utf-8")):
            connection.exec_driver_sql(statement)
        connection.exec_driver_sql(f"PRAGMA user_version = {step}")


def statements(script: str) -> list[str]:
    """The statements of a script; an empty line ends each."""
    return [part.strip().removesuffix(";") for part in script.split("\n\n") if part.strip()]
