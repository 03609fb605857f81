"""What a guard says of its run: ``guard.json``, sealed over itself and over ``guard.log``."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from flywheel.files import dump, read_json, sync_folder, write_atomic

FILE = "guard.json"
LOG_FILE = "guard.log"

LEFT, KILLED, LOST, OFF, ORPHANED = "left", "killed", "lost", "off", "orphaned"
VERDICTS = (LEFT, KILLED, LOST, OFF, ORPHANED)


@dataclass(frozen=True, slots=True)
class GuardWord:
    """How a run ended for its guard.

    ``verdict``: ``left`` (the engine left by itself, or others ended it), ``killed`` (by the
    guard, for memory), ``lost`` (the guard died, went blind or left no whole word), ``off`` (the
    run had none) or ``orphaned`` (the supervisor died, and the guard ended the engine).
    ``trigger`` is ``level``, ``slope`` or ``overtime``, ``memory`` the kind that ran short,
    ``host`` or ``device``.  ``reaction_s`` is from the first poll over the line to the signal;
    ``signalled_ns`` that signal on the monotonic clock.  ``memory_back`` is whether the level
    before the launch was seen again: None after an engine that left by itself and whose memory
    somebody else may have taken since.  ``stuck`` are pids that did not die of SIGKILL.
    """

    verdict: str
    reason: str = ""
    run_id: str | None = None
    nonce: str | None = None
    trigger: str | None = None
    memory: str | None = None
    before_bytes: int | None = None
    low_water_bytes: int | None = None
    peak_fall_bytes_per_s: int | None = None
    device_before_bytes: int | None = None
    device_low_water_bytes: int | None = None
    killed_at_bytes: int | None = None
    fall_bytes_per_s: int | None = None
    reaction_s: float | None = None
    signalled_ns: int | None = None
    killed: int = 0
    stuck: tuple[int, ...] = ()
    after_bytes: int | None = None
    memory_back: bool | None = None
    polls: int = 0
    worst_gap_s: float = 0.0
    p99_gap_s: float = 0.0
    watched_s: float = 0.0
    cpu_s: float = 0.0
    rss_bytes: int | None = None
    locked: bool = False
    oom_score_adj: int | None = None
    log_bytes: int | None = None
    log_sha256: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The word as a JSON object, without its seal."""
        return {**asdict(self), "stuck": list(self.stuck)}

    @classmethod
    def from_json(cls, value: object) -> GuardWord | None:
        """The word in a JSON object; None when it holds none that this version knows."""
        if not isinstance(value, dict):
            return None
        names = {field.name for field in fields(cls)}
        known = {name: value[name] for name in names if name in value}
        stuck = known.get("stuck", [])
        if known.get("verdict") not in VERDICTS or not isinstance(stuck, list):
            return None
        for name in ("polls", "killed"):
            if type(known.get(name, 0)) is not int:
                return None
        for name in ("worst_gap_s", "cpu_s", "watched_s"):
            if type(known.get(name, 0.0)) not in (int, float):
                return None
        return cls(**{**known, "stuck": tuple(stuck)})

    def write(self, run_dir: Path) -> None:
        """Leave ``guard.json`` in the run directory, whole and sealed."""
        body = self.to_json()
        write_atomic(run_dir / FILE, dump({**body, "seal": _seal(body)}))
        sync_folder(run_dir)


def _seal(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def read_sealed(run_dir: Path, run_id: str, nonce: str) -> GuardWord:
    """The guard's word on this run; ``lost``, with the reason, when it does not hold."""
    body = read_json(run_dir / FILE)
    if body is None:
        return GuardWord(LOST, "the guard left no word")
    seal = body.pop("seal", None)
    word = GuardWord.from_json(body)
    if word is None or seal != _seal(body):
        return GuardWord(LOST, "the guard's word is not what it sealed")
    if (word.run_id, word.nonce) != (run_id, nonce):
        return GuardWord(LOST, "the guard's word belongs to another run")
    try:
        log = (run_dir / LOG_FILE).read_bytes()
    except OSError:
        return GuardWord(LOST, "the guard's log is gone")
    if (len(log), hashlib.sha256(log).hexdigest()) != (word.log_bytes, word.log_sha256):
        return GuardWord(LOST, "the guard's log is not what it sealed")
    return word
