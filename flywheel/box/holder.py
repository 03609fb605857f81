"""What a lock file says of its holder, and whether that holder is gone.

The text is for people and for the next holder; it never decides whether the lock is held.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flywheel.box import identity
from flywheel.box.identity import Identity
from flywheel.files import read_json


@dataclass(frozen=True, slots=True)
class Holder:
    """What the lock file says of its holder; ``released_utc`` is set by an orderly release."""

    identity: Identity | None
    purpose: str
    since_utc: str
    run_dir: str | None = None
    released_utc: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The holder as a JSON object."""
        return {
            "holder": None if self.identity is None else self.identity.to_json(),
            "purpose": self.purpose,
            "since_utc": self.since_utc,
            "run_dir": self.run_dir,
            "released_utc": self.released_utc,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Holder:
        """The holder in a JSON object, with blanks where it says nothing."""
        run_dir, released = value.get("run_dir"), value.get("released_utc")
        return cls(
            Identity.from_json(value.get("holder")),
            str(value.get("purpose") or "unknown"),
            str(value.get("since_utc") or "unknown"),
            run_dir if isinstance(run_dir, str) else None,
            released if isinstance(released, str) else None,
        )

    def __str__(self) -> str:
        who = "an unknown process" if self.identity is None else f"process {self.identity.pid}"
        if self.released_utc is not None and self.run_dir is not None:
            return f"the supervisor of {self.run_dir} (left to it by {who} at {self.released_utc})"
        return f"{who} ({self.purpose}, since {self.since_utc})"


@dataclass(frozen=True, slots=True)
class Takeover:
    """A lease that was taken from a holder who never gave it back, and what proves him gone."""

    previous: Holder
    proof: str

    def to_json(self) -> dict[str, Any]:
        """The takeover as a JSON object."""
        return {"previous": self.previous.to_json(), "proof": self.proof}


def said(path: Path) -> Holder | None:
    """Whom the file names; None when it says nothing that can be read."""
    value = read_json(path)
    return None if value is None else Holder.from_json(value)


def last_holder(path: Path) -> Holder | None:
    """Whom the file names, held or not; None for an empty or no file, blanks for a garbled one."""
    found = said(path)
    with contextlib.suppress(OSError):
        if found is None and path.stat().st_size > 0:
            return Holder(None, "unknown", "unknown")
    return found


def proof_of_absence(gone: Holder) -> str:
    """One sentence that proves a holder gone, by identity; never by the age of his text."""
    who = gone.identity
    if who is None:
        return "the lock file names no process, and the kernel holds no lock on it."
    if who.boot_id != identity.boot_id():
        return f"process {who.pid} belongs to an earlier boot of this box."
    now = identity.of(who.pid, zombie=True)
    if now is None:
        return f"no process {who.pid} exists."
    if now != who:
        return (
            f"process {who.pid} is another one now: it started at tick {now.start_ticks}, "
            f"the holder at tick {who.start_ticks}."
        )
    if not identity.is_alive(who):
        return f"process {who.pid} has ended and only its parent has not noticed."
    return f"process {who.pid} still lives, but holds neither the lock nor its witness."


def orphan(previous: Holder | None) -> int | None:
    """The pid of an engine that the previous holder's run left behind; None when there is none."""
    if previous is None or previous.run_dir is None:
        return None
    engine = Identity.from_json(read_json(Path(previous.run_dir) / "engine.json"))
    members = () if engine is None else identity.group_members(engine)
    return members[0] if members else None
