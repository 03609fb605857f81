"""From a run directory to what the ledger is told: the outcome, its reason, the log, the record.

It reads files and decides nothing about levers.  Whatever goes wrong here is the run's reason, not
an exception: a night must survive any log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flywheel.box.clock import utc_text
from flywheel.files import free_bytes
from flywheel.loop.judge import RunEnd
from flywheel.run import launch
from flywheel.run.exit_status import ExitStatus
from flywheel.run.manifest import Manifest
from flywheel.run.parse import Refusal, parse
from flywheel.run.record import RunRecord
from flywheel.run.stopwatch import Look, contradiction

# What a run that was ended from outside is called; none of these speaks about the lever.
BLOCKED_CODES = ("interrupted", "budget_spent", "never_started", "not_started", "disk_full")
_OUTCOMES = {
    "timeout": "timeout",
    "exit_signal": "killed",
    "guard_killed": "killed",
    "engine_stuck": "killed",
    "supervisor_lost": "killed",
    **dict.fromkeys(BLOCKED_CODES, "blocked"),
}
# With less than this nothing can be written, and so nothing be said about it either.
_FULL_BYTES = 65536
# Two different lengths of a log: with fewer, nothing was seen of it before its end.
LEAST_LOOKS = 2
_OF_A_FULL_DISK = (
    "exit_status", "exit_signal", "log_empty", "seal_missing", "truncated", "malformed_event",
    "supervisor_lost",
)  # fmt: skip
_NO_SPACE = ("no space left on device", "disk quota exceeded")


@dataclass(frozen=True, slots=True)
class Ingested:
    """A finished run, ready for the ledger; ``record`` is there exactly when it is ``ok``."""

    end: RunEnd
    text: str | None
    record: RunRecord | None
    refusal: Refusal | None


def ingest(
    run_dir: Path,
    manifest: Manifest,
    state: launch.RunState,
    *,
    stopped_as: str = "interrupted",
    contamination: str | None = None,
    contaminated_as: str = "foreign_process",
    evidence: dict[str, Any] | None = None,
    looks: Sequence[Look] | None = None,
) -> Ingested:
    """Read what a finished run left.

    ``stopped_as`` is the blocked code of a run that this loop ended; ``contamination`` says what
    spoilt its numbers from outside, and ``contaminated_as`` what that is called. ``looks`` are what
    the clock of a run of patched code is held to; None where they are not at hand any more, as for
    a ledger that is made again.
    """
    text = launch.log_text(run_dir)
    status = state.exit_status
    spoilt = None if contamination is None else Refusal(contaminated_as, contamination)
    if spoilt is None and looks is not None and manifest.patched:
        spoilt = _out_of_step(text, manifest, looks)
    outcome = _judge(run_dir, manifest, state, text, spoilt)
    refusal = outcome if isinstance(outcome, Refusal) else None
    if refusal is not None:
        refusal = _explain(run_dir, refusal, stopped_as, _disk_full(run_dir, status))
    end = RunEnd(
        outcome="ok" if refusal is None else _OUTCOMES.get(refusal.code, "void"),
        code="" if refusal is None else refusal.code,
        detail="" if refusal is None else str(refusal.detail),
        started_utc=status.started_utc if status else manifest.created_utc,
        ended_utc=status.ended_utc if status else utc_text(),
        wall_ns=status.duration_ns if status else 0,
        exit_status=_exit_code(status),
        evidence={"exit": status.to_json() if status else None, **(evidence or {})},
    )
    record = outcome if isinstance(outcome, RunRecord) else None
    return Ingested(end, text or None, record, refusal)


def _out_of_step(text: str, manifest: Manifest, looks: Sequence[Look]) -> Refusal | None:
    if len(looks) < LEAST_LOOKS:
        return Refusal("unwitnessed", "nobody held a clock beside the patched engine")
    said = contradiction(text, manifest.nonce, looks)
    return None if said is None else Refusal("clock_contradicted", said)


def _exit_code(status: ExitStatus | None) -> int | None:
    if status is None:
        return None
    return status.status if status.signal is None else -status.signal


def _judge(
    run_dir: Path,
    manifest: Manifest,
    state: launch.RunState,
    text: str,
    spoilt: Refusal | None,
) -> RunRecord | Refusal:
    if state.phase == "unclaimed":
        return Refusal("never_started", "no supervisor ever took the run")
    if state.exit_status is None:
        return Refusal("supervisor_lost", "the supervisor died and left no word of the engine")
    try:
        outcome = parse(text, manifest, state.exit_status)
    except Exception as error:
        return Refusal("parser_failed", f"the parser met {type(error).__name__}: {error}")
    if isinstance(outcome, RunRecord):
        if _changed(text, state.exit_status):
            return Refusal("log_changed", "the log is not what it was when the run ended")
        if spoilt is not None:
            return spoilt
    return outcome


def _changed(text: str, status: ExitStatus) -> bool:
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    return status.log_sha256 != digest


def _disk_full(run_dir: Path, status: ExitStatus | None) -> bool:
    """Whether nothing could be written when the engine ended, or by a lost supervisor."""
    free = free_bytes(run_dir) if status is None else status.disk_free_bytes
    return free is not None and free < _FULL_BYTES


def _explain(run_dir: Path, refusal: Refusal, stopped_as: str, disk_full: bool) -> Refusal:
    """Name a run that this loop ended, a full disk, and what the engine said last."""
    if refusal.code == "stopped":
        return Refusal(stopped_as, "the loop ended the run before it was done")
    if refusal.code == "gate_failed":
        return refusal
    if disk_full and refusal.code in _OF_A_FULL_DISK:
        return Refusal("disk_full", f"the disk was full when the run ended; {refusal.detail}")
    said = launch.stderr_tail(run_dir)
    if any(word in said.lower() for word in _NO_SPACE):
        return Refusal("disk_full", said.splitlines()[-1])
    if refusal.code in ("exit_status", "exit_signal", "log_empty", "seal_missing") and said:
        last = said.splitlines()[-1][:200]
        return Refusal(refusal.code, f"{refusal.detail}; it said: {last}", refusal.line)
    return refusal
