"""Is a ledger's file whole, and are its own rules still in force?"""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache

from sqlalchemy import Connection, create_engine, select

from flywheel.ledger import models
from flywheel.ledger.triggers import triggers

_LISTED = 3
_SCHEMA = "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL"


def problems(connection: Connection, *, quick: bool = False) -> tuple[str, ...]:
    """Everything wrong with the file, its references and its rules; empty when it is whole.

    `quick` leaves out the comparison of every index with its table.
    """
    check = "quick_check" if quick else "integrity_check"
    found = connection.exec_driver_sql(f"PRAGMA {check}({_LISTED})").scalars().all()
    if found != ["ok"]:
        return tuple(str(line) for line in found)
    dangling = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
    return (
        *(f"row {r[1]} of {r[0]} names a row of {r[2]} that is not there" for r in dangling),
        *broken_rules(connection),
    )


def broken_rules(connection: Connection) -> tuple[str, ...]:
    """Every trigger, table and index that is missing, or not as this version makes it."""
    there = _schema(connection)
    wanted = expected_schema()
    out = []
    for key, tokens in wanted.items():
        kind, name = key
        if key not in there:
            out.append(f"the {kind} {name} is missing; nothing guards what it guarded")
        elif there[key] != tokens:
            out.append(f"the {kind} {name} was altered")
    out += [f"the {kind} {name} is none of ours" for kind, name in there.keys() - wanted.keys()]
    return tuple(sorted(out))


@cache
def expected_schema() -> dict[tuple[str, str], Counter[str]]:
    """The schema of a new ledger: the words of each object's SQL, whatever their order."""
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        models.metadata.create_all(connection)
        for trigger in triggers():
            connection.exec_driver_sql(trigger)
        found = _schema(connection)
    engine.dispose()
    return found


def _schema(connection: Connection) -> dict[tuple[str, str], Counter[str]]:
    return {
        (kind, name): Counter(re.findall(r"\w+|[^\w\s]", sql))
        for kind, name, sql in connection.exec_driver_sql(_SCHEMA)
        if not name.startswith("sqlite_")
    }


def damaged_documents(connection: Connection) -> tuple[str, ...]:
    """Every run whose manifest is no JSON document."""
    out = []
    for run_id, manifest in connection.execute(select(models.run.c.id, models.run.c.manifest)):
        try:
            json.loads(manifest)
        except ValueError:
            out.append(f"the manifest of run {run_id} is not JSON")
    return tuple(out)
