"""A finished run goes into the ledger: how it ended is left in its directory, then it is judged."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, replace
from pathlib import Path

from flywheel.errors import FlywheelError, LedgerError
from flywheel.files import dump, read_json, write_atomic
from flywheel.ledger.store import Ledger
from flywheel.loop import judge
from flywheel.loop.judge import Entered, RunEnd
from flywheel.run.ingest import Ingested

FILE = "outcome.json"


def leave(run_dir: Path, end: RunEnd) -> None:
    """Leave the run's outcome in its directory: the loop saw what no other file there tells."""
    # A full disk must not keep the run out of the ledger; without the file it is read again.
    with contextlib.suppress(OSError):
        write_atomic(run_dir / FILE, dump(asdict(end)))


def left(run_dir: Path) -> RunEnd | None:
    """The outcome left in a run directory; None when there is none, or none that can be read."""
    value = read_json(run_dir / FILE)
    try:
        return None if value is None else RunEnd(**value)
    except TypeError:
        return None


def enter(
    ledger: Ledger, run_id: str, got: Ingested, *, now_utc: str
) -> tuple[Entered, str | None]:
    """Enter a run; a judge that fails makes it void, and the sentence says what it met."""
    try:
        return judge.enter(ledger, run_id, got.end, got.text, got.record, now_utc=now_utc), None
    except LedgerError:
        raise
    except (FlywheelError, ArithmeticError, ValueError) as error:
        # A statistic that fails is no promotion; the run is kept as void, with the reason.
        detail = f"{type(error).__name__}: {error}"
        end = replace(got.end, outcome="void", code="judge_failed", detail=detail)
        entered = judge.enter(ledger, run_id, end, got.text, None, now_utc=now_utc)
        return entered, f"the judge refused {run_id}: {error}"
