"""After a fault: what the ledger says, and whether lever, device and ledger came to no harm.

The counts come straight from the file and from the engine's own witness, not through the code that
wrote them.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flywheel.box.lease import Lease, device_path
from flywheel.errors import FlywheelError
from flywheel.ledger.store import check_integrity
from flywheel.selftest import census
from flywheel.selftest.engine.witness import told
from flywheel.selftest.fault import Fault
from flywheel.selftest.scene import Scene


@dataclass(frozen=True, slots=True)
class Verdict:
    """One row of the table; an empty text is a pass."""

    fault: str
    noun: str
    injected: str
    outcome: str
    code: str
    expected: str
    wrong: str = ""
    lever: str = ""
    device: str = ""
    ledger: str = ""
    skipped: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Everything is as it must be."""
        return not (self.wrong or self.lever or self.device or self.ledger)

    @property
    def false_accept(self) -> bool:
        """A run counts that must not."""
        return self.outcome == "ok" and not self.expected.startswith("ok")


@contextlib.contextmanager
def rows(ledger: Path) -> Iterator[sqlite3.Connection]:
    """The ledger's file, read without the product's own code."""
    connection = sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)
    try:
        yield connection
    finally:
        connection.close()


def verdict(fault: Fault, scene: Scene, seconds: float) -> Verdict:
    """Look at everything that a fault may have harmed."""
    with rows(scene.ledger) as connection:
        runs = connection.execute(
            "SELECT run.id, outcome, code, detail FROM run LEFT JOIN run_end ON run_id = run.id"
            " ORDER BY run.rowid"
        ).fetchall()
        lever = _lever(fault, scene, connection)
        ledger = _ledger(fault, scene, connection)
    first = runs[0] if runs else ("", "none", "", "")
    outcome, code = first[1] or "open", first[2] or ""
    wanted = f"{fault.outcome} {' | '.join(fault.codes)}".strip()
    wrong = list(scene.notes)
    if outcome != fault.outcome or code not in fault.codes:
        wrong.append(f"recorded as {outcome} {code} ({first[3]})")
    if len(runs) > 1:
        wrong.append(f"{len(runs)} runs were planned, not 1")
    starts = sum(line["what"] == "start" for line in told(scene.witness))
    if starts > 1:
        wrong.append(f"the engine was started {starts} times")
    return Verdict(
        fault.name, fault.noun, fault.injected, outcome, code, wanted, "; ".join(wrong),
        "; ".join(lever), "; ".join(_device(scene)), "; ".join(ledger), seconds=seconds,
    )  # fmt: skip


def _lever(fault: Fault, scene: Scene, connection: sqlite3.Connection) -> list[str]:
    found = []
    endings = [row[0] for row in connection.execute("SELECT ending FROM decision")]
    wanted = [] if fault.ending is None else [fault.ending]
    if endings != wanted:
        found.append(f"decided {', '.join(endings) or 'nothing'}")
    blocks = connection.execute("SELECT count(*) FROM block").fetchone()[0]
    if blocks != fault.harmless:
        found.append(f"{blocks} blocks entered the statistics")
    variant = scene.view().variants[0]
    if variant.voids_in_a_row != fault.attempts:
        found.append(f"{variant.voids_in_a_row} attempts are counted, not {fault.attempts}")
    return found


def _device(scene: Scene) -> list[str]:
    found = []
    left = census.gone(scene.token)
    if left:
        named = ", ".join(f"{one.role} {one.identity.pid}" for one in left)
        found.append(f"still alive: {named}")
    try:
        Lease.acquire(device_path(), "flywheel selftest").release()
    except FlywheelError as error:
        found.append(str(error))
    return found


def _ledger(fault: Fault, scene: Scene, connection: sqlite3.Connection) -> list[str]:
    found = []
    whole = connection.execute("PRAGMA integrity_check").fetchall()
    if whole != [("ok",)] or connection.execute("PRAGMA foreign_key_check").fetchall():
        found.append("the file is damaged")
    numbers = connection.execute(
        "SELECT count(*) FROM measurement WHERE metric = 'time'"
    ).fetchone()[0]
    sealed = [line["points"] for line in told(scene.witness) if line["what"] == "sealed"]
    wanted = (sealed[0] if sealed else -1) if fault.harmless else 0
    if numbers != wanted:
        found.append(f"{numbers} measurements of time, not {wanted}")
    arms = connection.execute("SELECT count(*) FROM arm").fetchone()[0]
    if arms and not fault.harmless:
        found.append(f"{arms} arms of a run that is worth nothing")
    try:
        with scene.opened() as ledger:
            check_integrity(ledger)
    except FlywheelError as error:
        found.append(str(error))
    return found
