"""The one lock of a device, and the one lock of a ledger's daemon.

A lease is an ``flock`` on an open file: the kernel drops it with the last process that holds the
descriptor, so a crash frees it and no age or timeout is ever guessed.  The text in the file says
who holds it, for people and for the next holder; it never decides whether the lock is held.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from flywheel import identity
from flywheel.clock import utc_text
from flywheel.errors import LeaseBusy
from flywheel.files import dump, read_json
from flywheel.identity import Identity

# A reader of the holder takes a shared lock for an instant; outwait it.
_PATIENCE_S = 0.4


@dataclass(frozen=True, slots=True)
class Holder:
    """What the lock file says of its holder."""

    identity: Identity | None
    purpose: str
    since_utc: str
    run_dir: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The holder as a JSON object."""
        return {
            "holder": None if self.identity is None else self.identity.to_json(),
            "purpose": self.purpose,
            "since_utc": self.since_utc,
            "run_dir": self.run_dir,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Holder:
        """The holder in a JSON object, with blanks where it says nothing."""
        run_dir = value.get("run_dir")
        return cls(
            Identity.from_json(value.get("holder")),
            str(value.get("purpose") or "unknown"),
            str(value.get("since_utc") or "unknown"),
            run_dir if isinstance(run_dir, str) else None,
        )

    def __str__(self) -> str:
        who = "an unknown process" if self.identity is None else f"process {self.identity.pid}"
        return f"{who} ({self.purpose}, since {self.since_utc})"


def device_path() -> Path:
    """The lock file of this box's device: ``FLYWHEEL_LEASE``, else one name for all users."""
    if named := os.environ.get("FLYWHEEL_LEASE"):
        return Path(named)
    shared = Path("/run/lock")
    folder = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
    return folder / "flywheel-device0.lock"


def daemon_path(ledger: Path) -> Path:
    """The lock file of the daemon of one ledger."""
    return ledger.with_name(ledger.name + ".daemon.lock")


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC
    # Without O_CREAT first: a sticky folder forbids that flag on another user's existing file.
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, flags | os.O_CREAT, 0o666)
        with contextlib.suppress(OSError):
            os.fchmod(fd, 0o666)
        return fd


def _lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


class Lease:
    """A held lock; release it, leave its ``with`` block or die, and the next may have it."""

    def __init__(self, path: Path, fd: int, previous: Holder | None) -> None:
        self.path = path
        self.previous = previous
        self._fd = fd

    @classmethod
    def acquire(cls, path: Path, purpose: str) -> Lease:
        """Take the lock or raise LeaseBusy, naming the holder."""
        fd = _open(path)
        deadline = time.monotonic() + _PATIENCE_S
        while not _lock(fd, fcntl.LOCK_EX):
            if time.monotonic() >= deadline:
                os.close(fd)
                said = _said(path)
                raise LeaseBusy(f"{path} is held by {said or 'an unknown process'}.")
            time.sleep(0.05)
        lease = cls(path, fd, _said(path))
        lease.tell(purpose)
        return lease

    @property
    def fd(self) -> int:
        """The descriptor, close-on-exec; handed to a run's supervisor and to nobody else."""
        return self._fd

    def tell(self, purpose: str, run_dir: Path | None = None) -> None:
        """Write who holds the lock and for what."""
        told = Holder(
            identity.current(), purpose, utc_text(), None if run_dir is None else str(run_dir)
        )
        data = dump(told.to_json()).encode()
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, data, 0)

    def release(self) -> None:
        """Give the lock back; harmless when it was given back before.

        Only the descriptor is closed.  An explicit unlock would also free the lock under a
        supervisor that shares the descriptor.
        """
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def _said(path: Path) -> Holder | None:
    value = read_json(path)
    return None if value is None else Holder.from_json(value)


def holder(path: Path) -> Holder | None:
    """Who holds the lock now; None when it is free (whatever the file says)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if _lock(fd, fcntl.LOCK_SH):
            return None
    finally:
        os.close(fd)
    return _said(path) or Holder(None, "unknown", "unknown")


def describe(path: Path) -> dict[str, Any]:
    """The state of a lock as JSON: held or free, by whom, and whether that process still lives."""
    held = holder(path)
    if held is None:
        return {"path": str(path), "held": False}
    return {
        "path": str(path),
        "held": True,
        **held.to_json(),
        "holder_alive": identity.is_alive(held.identity),
    }


__all__ = ["Holder", "Lease", "daemon_path", "describe", "device_path", "holder"]
