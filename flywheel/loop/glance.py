"""The state of the loop at a glance: the status file, the locks, and a few rows of the ledger.

Made to be quick on a ledger of any size, so it asks SQLite a handful of indexed questions and
loads neither SQLAlchemy nor the statistics.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from flywheel.box import identity, lease
from flywheel.box.identity import Identity
from flywheel.errors import UsageError
from flywheel.files import read_json
from flywheel.ledger import schema
from flywheel.ledger.refusals import refusal
from flywheel.loop import stop

BUSY_S = 2.0


def status_path(ledger: Path) -> Path:
    """The status file of a ledger's daemon."""
    return ledger.with_name(ledger.name + ".daemon.json")


def log_path(ledger: Path) -> Path:
    """Where a detached daemon writes what it would have shown."""
    return ledger.with_name(ledger.name + ".daemon.log")


def require(ledger: Path) -> None:
    """UsageError unless there is a ledger there, or a daemon that is about to make one."""
    if not ledger.exists() and lease.holder(lease.daemon_path(ledger)) is None:
        raise UsageError(f"there is no ledger at {ledger}; flywheel run makes one.")


def daemon(ledger: Path) -> dict[str, Any]:
    """The status file, whether the daemon that wrote it still lives, and how long ago that was."""
    path = status_path(ledger)
    body = read_json(path) or {}
    try:
        silent_s = max(0.0, round(time.time() - path.stat().st_mtime, 1))
    except OSError:
        silent_s = None
    alive = identity.is_alive(Identity.from_json(body.get("daemon")))
    return {**body, "alive": alive, "silent_s": silent_s}


def status(ledger: Path) -> dict[str, Any]:
    """Everything that `flywheel status` tells. UsageError without a ledger."""
    require(ledger)
    held = lease.holder(lease.daemon_path(ledger))
    asked = stop.requested(ledger, None if held is None else held.identity)
    return {
        "ledger": str(ledger),
        "running": held is not None,
        "pid": None if held is None or held.identity is None else held.identity.pid,
        "daemon": daemon(ledger),
        "device": lease.describe(lease.device_path()),
        "stop": None if asked is None else asked.reason,
        **history(ledger),
    }


def history(ledger: Path) -> dict[str, Any]:
    """What the ledger says of where the loop stands."""
    told: dict[str, Any] = {
        "campaign": None, "open_runs": [], "halts": [], "halted": None, "finding": None,
        "faults": {"count": 0, "last": None},
    }  # fmt: skip
    if not ledger.exists():
        return told
    with _reading(ledger) as connection:
        answers = (connection.execute(one).fetchone()[0] for one in schema.QUESTIONS)
        if schema.checked_version(ledger, *answers) == 0:
            return told
        told["halts"] = _halts(connection)
        told["halted"] = told["halts"][0]["reason"] if told["halts"] else None
        told["open_runs"] = [
            row["id"]
            for row in connection.execute(
                "SELECT id FROM run LEFT JOIN run_end ON run_end.run_id = run.id "
                "WHERE run_end.run_id IS NULL ORDER BY run.created_utc, run.id"
            )
        ]
        told["campaign"] = _campaign(connection)
        row = connection.execute(
            "SELECT number, sentence, created_utc FROM finding ORDER BY number DESC LIMIT 1"
        ).fetchone()
        told["finding"] = None if row is None else dict(row)
        told["faults"] = _faults(connection)
    return told


@contextmanager
def _reading(ledger: Path) -> Iterator[sqlite3.Connection]:
    try:
        # Not read-only: whoever comes first rolls back what a killed writer had begun.
        with closing(
            sqlite3.connect(f"{ledger.as_uri()}?mode=rw", uri=True, timeout=BUSY_S)
        ) as connection:
            connection.row_factory = sqlite3.Row
            yield connection
    except sqlite3.Error as error:
        raise refusal(ledger, error, "read") from error


def _has(connection: sqlite3.Connection, table: str) -> bool:
    """Whether the table is there: a ledger that an older flywheel wrote has fewer."""
    query = "SELECT 1 FROM sqlite_master WHERE name = ?"
    return connection.execute(query, (table,)).fetchone() is not None


def _faults(connection: sqlite3.Connection) -> dict[str, Any]:
    """How many faults there were while clients were served, and the last one."""
    if not _has(connection, "service_fault"):
        return {"count": 0, "last": None}
    total = connection.execute("SELECT count(*) FROM service_fault").fetchone()[0]
    row = connection.execute(
        "SELECT what, detail, answers, created_utc FROM service_fault ORDER BY id DESC LIMIT 1"
    ).fetchone()
    return {"count": total, "last": None if row is None else dict(row)}


def _halts(connection: sqlite3.Connection) -> list[dict[str, Any]]:
    """Halts that nobody resumed."""
    if not _has(connection, "halt"):
        return []
    return [
        dict(row)
        for row in connection.execute(
            "SELECT id, code, reason, run_id, created_utc FROM halt "
            "WHERE id NOT IN (SELECT halt_id FROM resume) ORDER BY id"
        )
    ]


def _campaign(connection: sqlite3.Connection) -> dict[str, Any] | None:
    row = connection.execute(
        "SELECT campaign.*, campaign_end.reason AS ended FROM campaign LEFT JOIN campaign_end "
        "ON campaign_end.campaign_id = campaign.id ORDER BY campaign.id DESC LIMIT 1"
    ).fetchone()
    if row is None:
        return None
    # Decisions that no later one supersedes; the tests among them spend the error budget.
    tests, promotions = connection.execute(
        "SELECT count(*), coalesce(sum(ending = 'promoted'), 0) FROM decision "
        "JOIN variant ON variant.id = decision.variant_id "
        "WHERE variant.campaign_id = ? AND decision.test IS NOT NULL AND decision.id NOT IN "
        "(SELECT supersedes FROM decision WHERE supersedes IS NOT NULL)",
        (row["id"],),
    ).fetchone()
    return {
        "id": row["id"],
        "label": json.loads(row["settings"])["label"],
        "tests": tests,
        "left": max(0, row["budget"] - tests),
        "promotions": promotions,
        "since_utc": row["created_utc"],
        "ended": row["ended"],
    }
