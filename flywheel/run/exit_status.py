"""How one run ended, as its supervisor saw it.  Standard library only; written once, whole."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flywheel.box.identity import Identity
from flywheel.files import dump, read_json, sync_folder, write_atomic
from flywheel.guard.word import GuardWord

FILE = "exit.json"


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """The reaped status of an engine: ``status`` is its exit code, or None if a signal ended it.

    ``stuck`` says that it could not be reaped at all, because SIGKILL did not end it.
    ``suspended_s`` is how long the box slept during the run, ``wall_step_s`` how far its wall clock
    was set in that time.  ``guard`` is None in a word from before there were guards.
    ``disk_free_bytes`` is what the run's disk had left when the engine ended.
    """

    run_id: str
    status: int | None
    signal: int | None
    timed_out: bool
    stopped: bool
    duration_ns: int
    started_utc: str
    ended_utc: str
    leftovers: int
    group_empty: bool
    peak_rss_bytes: int | None
    log_bytes: int | None
    log_sha256: str | None
    engine: Identity | None
    supervisor: Identity | None
    error: str | None = None
    stuck: bool = False
    suspended_s: float = 0.0
    wall_step_s: float = 0.0
    guard: GuardWord | None = None
    disk_free_bytes: int | None = None

    @property
    def clean(self) -> bool:
        """Left by itself with status 0 and nobody of its group behind it."""
        return self.status == 0 and self.signal is None and not (self.timed_out or self.stopped)

    def to_json(self) -> dict[str, Any]:
        """The status as a JSON object."""
        value = asdict(self)
        for name in ("engine", "supervisor"):
            identity = getattr(self, name)
            value[name] = None if identity is None else identity.to_json()
        value["guard"] = None if self.guard is None else self.guard.to_json()
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ExitStatus | None:
        """The status in a JSON object, or None when a field is missing or of another type."""
        shapes: dict[str, tuple[type, ...]] = {
            "run_id": (str,),
            "status": (int, type(None)),
            "signal": (int, type(None)),
            "timed_out": (bool,),
            "stopped": (bool,),
            "duration_ns": (int,),
            "started_utc": (str,),
            "ended_utc": (str,),
            "leftovers": (int,),
            "group_empty": (bool,),
            "peak_rss_bytes": (int, type(None)),
            "log_bytes": (int, type(None)),
            "log_sha256": (str, type(None)),
            "error": (str, type(None)),
        }
        for name, kinds in shapes.items():
            if name not in value or type(value[name]) not in kinds:
                return None
        later: dict[str, tuple[type, ...]] = {
            "stuck": (bool,),
            "suspended_s": (float, int),
            "wall_step_s": (float, int),
            "disk_free_bytes": (int, type(None)),
        }
        for name, kinds in later.items():
            if name in value and type(value[name]) not in kinds:
                return None
        guard = GuardWord.from_json(value.get("guard"))
        if guard is None and value.get("guard") is not None:
            return None
        return cls(
            **{name: value[name] for name in shapes},
            **{name: value[name] for name in later if name in value},
            guard=guard,
            engine=Identity.from_json(value.get("engine")),
            supervisor=Identity.from_json(value.get("supervisor")),
        )

    @classmethod
    def read(cls, run_dir: Path) -> ExitStatus | None:
        """The status left in a run directory; None while there is none."""
        value = read_json(run_dir / FILE)
        return None if value is None else cls.from_json(value)

    def write(self, run_dir: Path) -> None:
        """Leave the status in the run directory, whole."""
        write_atomic(run_dir / FILE, dump(self.to_json()))
        sync_folder(run_dir)
