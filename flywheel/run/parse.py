"""Log text and manifest in, a RunRecord or a Refusal out.  Pure and total: no I/O, no exception.

Only lines that start with ``@<nonce> `` of this run's manifest are read; all else is prose.  This
module finds the events and proves the seal, ``events`` types them, ``admit`` compares them with
each other and with the manifest.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Any

from flywheel.run import admit, events
from flywheel.run.exit_status import ExitStatus
from flywheel.run.manifest import Manifest
from flywheel.run.record import RunRecord
from flywheel.run.refusal import Refusal, RefusedLogError

__all__ = ["Refusal", "parse"]

# A box that sleeps cools down, drops its clocks and loses its device's state.
SUSPENDED_LIMIT_S = 1.0

_ANY_NONCE = re.compile(r"^@[0-9a-f]{32} ", re.MULTILINE)


@dataclass(slots=True)
class Sorted:
    """The typed events of one log, by kind and in order."""

    record: dict[str, list[Any]] = field(default_factory=dict)
    heartbeats: list[events.Event] = field(default_factory=list)
    last: events.Event | None = None
    total: int = 0
    first_ns: int = 0
    last_ns: int = 0


def parse(text: str, manifest: Manifest, exit_status: ExitStatus | None = None) -> (
    RunRecord | Refusal
):
    """What the log says, if every rule for a measurement holds; else the first one broken.

    ``exit_status`` is the supervisor's word.  A sealed log whose lossless gate failed is
    ``gate_failed`` however the engine left; otherwise an engine that did not leave by itself with
    status 0 is refused for that, whatever its log says.
    """
    try:
        outcome: RunRecord | Refusal = _read(text, manifest)
    except RefusedLogError as error:
        outcome = error.refusal
    if isinstance(outcome, Refusal) and outcome.code == "gate_failed":
        return outcome
    left = None if exit_status is None else _exit_refusal(exit_status, manifest, outcome)
    return outcome if left is None else left


def _exit_refusal(
    status: ExitStatus, manifest: Manifest, outcome: RunRecord | Refusal
) -> Refusal | None:
    also = f"; log: {outcome.code}" if isinstance(outcome, Refusal) else ""
    if status.run_id != manifest.run_id:
        return Refusal("run_id_mismatch", f"the exit status belongs to run {status.run_id}")
    if status.error is not None:
        return Refusal("not_started", status.error)
    guard = status.guard
    if guard is not None and guard.trigger == "overtime":
        return Refusal("timeout", f"the guard ended the run: {guard.reason}{also}")
    if guard is not None and guard.verdict == "killed":
        return Refusal("guard_killed", f"the memory guard ended the run: {guard.reason}{also}")
    if status.timed_out:
        return Refusal("timeout", f"the time limit of {manifest.timeout_s:g} s passed{also}")
    if status.stopped:
        return Refusal("stopped", f"the run was stopped on request{also}")
    if manifest.guard is not None and (guard is None or guard.verdict != "left"):
        why = "there is no word of it" if guard is None else guard.reason or guard.verdict
        return Refusal("guard_lost", f"nobody guarded the memory to the end: {why}{also}")
    if status.stuck:
        return Refusal("engine_stuck", f"SIGKILL did not end the engine{also}")
    if status.suspended_s > SUSPENDED_LIMIT_S:
        return Refusal(
            "suspended", f"the box slept for {status.suspended_s:.0f} s during the run{also}"
        )
    if status.signal is not None:
        return Refusal("exit_signal", f"the engine was ended by signal {status.signal}{also}")
    if status.status != 0:
        return Refusal("exit_status", f"the engine left with status {status.status}{also}")
    if status.leftovers or not status.group_empty:
        return Refusal(
            "group_left_behind", f"{status.leftovers} processes of the engine outlived it"
        )
    return None


def _read(text: str, manifest: Manifest) -> RunRecord:
    decoded = sealed_events(text, manifest.nonce)
    kinds = _sort(decoded)
    return admit.record(kinds.record, kinds.heartbeats, decoded[-1], manifest)


def sealed_events(text: str, nonce: str) -> list[events.Event]:
    """Every event of a log with that nonce, whose seal is right; raises RefusedLogError."""
    found = _event_lines(text, nonce)
    decoded = _decode(found, text)
    _check_seal(found, decoded)
    return decoded


def _event_lines(text: str, nonce: str) -> list[tuple[int, str]]:
    """(line number, line) of every event of this run; splits at newlines and nowhere else."""
    mark = f"@{nonce} "
    lines = text.split("\n")
    found = [(number, line) for number, line in enumerate(lines, 1) if line.startswith(mark)]
    if not found:
        if _ANY_NONCE.search(text):
            raise RefusedLogError("nonce_unknown", "every event carries the nonce of another run")
        what = "the log holds no event" if text else "there is no log, or it is empty"
        raise RefusedLogError("log_empty", what)
    return found


def _decode(found: list[tuple[int, str]], text: str) -> list[events.Event]:
    decoded: list[events.Event] = []
    final_line = text.count("\n") + 1
    for number, line in found:
        body = line[line.index(" ") + 1 :]
        try:
            decoded.append(events.Event(events.decode(body, number), number))
        except RefusedLogError as error:
            cut_short = number == final_line and error.refusal.code == "malformed_event"
            if cut_short:
                raise RefusedLogError("truncated", "the last line breaks off", number) from None
            raise
    return decoded


def _bytes(line: str) -> bytes:
    """The bytes that the log holds: undecodable ones travel as surrogate escapes."""
    try:
        return line.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return line.encode("utf-8", "surrogatepass")


def _check_seal(found: list[tuple[int, str]], decoded: list[events.Event]) -> None:
    """The last event is ``end`` and its seal is the hash of every event line before it."""
    ends = [place for place, event in enumerate(decoded) if event.body.get("event") == "end"]
    if not ends:
        last = decoded[-1]
        raise RefusedLogError(
            "seal_missing", f"the log stops after {last.name} without its seal", last.line
        )
    if ends[0] != len(decoded) - 1:
        raise RefusedLogError(
            "event_after_end", "an event follows the seal", decoded[ends[0] + 1].line
        )
    digest = hashlib.sha256()
    for _, line in found[:-1]:
        digest.update(_bytes(line) + b"\n")
    if decoded[-1].body.get("seal") != digest.hexdigest():
        raise RefusedLogError(
            "seal_wrong", "the seal is not the hash of the events before it", decoded[-1].line
        )


# A profile run says more, and never counts.
_PROFILED = ("rounds", "target", "phase")
_READERS = {
    "start": events.header,
    "loaded": events.loaded,
    "control": events.control,
    "plain": events.plain,
    "point": events.point,
    "gate": events.gate,
    "step_cost": events.step_cost,
}


def _sort(decoded: list[events.Event]) -> Sorted:
    kinds = Sorted(record={name: [] for name in (*_READERS, "memory")})
    previous_ns = 0
    for place, event in enumerate(decoded):
        if event.integer("seq") != place:
            raise RefusedLogError(
                "seq_broken", f"event {place} calls itself {event.body['seq']}", event.line
            )
        t_ns = event.integer("t_ns")
        if t_ns < previous_ns:
            raise RefusedLogError("clock_backwards", "an event is older than the last", event.line)
        previous_ns = t_ns
        name = event.text("event")
        if (name == "start") != (place == 0):
            raise RefusedLogError("start_misplaced", "start is not the first event", event.line)
        if name in _READERS:
            kinds.record[name].append(_READERS[name](event))
        elif name == "heartbeat":
            kinds.heartbeats.append(event)
        elif name == "memory":
            kinds.record["memory"].append(event.integer("peak_rss_bytes"))
        elif name != "end" and not (name in _PROFILED and kinds.record["start"][0].mode != "clean"):
            raise RefusedLogError("unknown_event", f"the event {name!r} is unknown", event.line)
    kinds.record["span"] = [decoded[0].integer("t_ns"), previous_ns]
    return kinds
