"""The one lock of a device, and the one lock of a ledger's daemon.

A lease is an ``flock`` on an open file: the kernel drops it with the last process that holds the
descriptor, so a crash frees it and no age or timeout is ever guessed.  The text in the file says
who holds it, for people and for the next holder; it never decides whether the lock is held.

The file may be deleted while it is held, and the next process would lock a new one of the same
name.  So every holder also binds an abstract socket of that name, which nobody can delete and
which the kernel drops the same way: the witness.  `docs/lease.md` is the protocol.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from flywheel.box import device, identity, witness
from flywheel.box.clock import utc_text
from flywheel.box.holder import Holder, Takeover, last_holder, orphan, proof_of_absence, said
from flywheel.box.witness import SHARED_FOLDER
from flywheel.errors import LeaseBusy, LeaseError
from flywheel.files import dump

# A reader of the holder takes a shared lock for an instant; outwait it.
_PATIENCE_S = 0.4


def device_path() -> Path:
    """The lock file of this box's device: ``FLYWHEEL_LEASE``, else one name for all users."""
    if named := os.environ.get("FLYWHEEL_LEASE"):
        return Path(named)
    shared = os.access(SHARED_FOLDER, os.W_OK)
    folder = SHARED_FOLDER if shared else Path(tempfile.gettempdir())
    return folder / f"flywheel-{device.key()}.lock"


def daemon_path(ledger: Path) -> Path:
    """The lock file of the daemon of one ledger."""
    return ledger.with_name(ledger.name + ".daemon.lock")


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC
    # Without O_CREAT first: a sticky folder forbids that flag on another user's existing file.
    try:
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, flags | os.O_CREAT, 0o666)
            with contextlib.suppress(OSError):
                os.fchmod(fd, 0o666)
            return fd
    except OSError as error:
        raise LeaseError(
            f"the lock file {path} cannot be opened ({error.strerror}); "
            "let FLYWHEEL_LEASE name one that can."
        ) from error


def _lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise LeaseError(
            f"the lock file's file system refuses locks ({error.strerror}); "
            "let FLYWHEEL_LEASE name a file on a local disk."
        ) from error
    return True


def _lock_soon(fd: int) -> bool:
    """The exclusive lock, outwaiting readers; False when a holder has it."""
    deadline = time.monotonic() + _PATIENCE_S
    while not _lock(fd, fcntl.LOCK_EX):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True


def _is_file(fd: int, path: Path) -> bool:
    """Whether the open file is still the one of that name."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except OSError:
        return False


class Lease:
    """A held lock; release it, leave its ``with`` block or die, and the next may have it."""

    def __init__(
        self, path: Path, fd: int, bound: socket.socket, previous: Holder | None
    ) -> None:
        self.path = path
        self.previous = previous
        self.takeover: Takeover | None = None
        if previous is not None and previous.released_utc is None:
            self.takeover = Takeover(previous, proof_of_absence(previous))
        self._fd = fd
        self._witness = bound
        self._told = Holder(identity.current(), "unknown", utc_text())

    @classmethod
    def acquire(cls, path: Path, purpose: str) -> Lease:
        """Take the lock or raise LeaseBusy, naming the holder."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            taken = cls._attempt(path)
            if isinstance(taken, Lease):
                break
            if time.monotonic() >= deadline:
                raise LeaseBusy(f"{path} is held by {taken}.")
            time.sleep(0.05)
        pid = orphan(taken.previous)
        if pid is not None and taken.previous is not None:
            taken._close()
            raise LeaseBusy(
                f"the device is still used by engine process {pid} of {taken.previous.run_dir}, "
                "whose supervisor is gone."
            )
        taken.tell(purpose)
        return taken

    @classmethod
    def _attempt(cls, path: Path) -> Lease | Holder:
        """The lease, or who has it."""
        fd = _open(path)
        bound: socket.socket | None = None
        try:
            if not _lock(fd, fcntl.LOCK_EX):
                return said(path) or Holder(None, "unknown", "unknown")
            # Deleted or replaced between the opening and the locking: not the file of this name.
            if not _is_file(fd, path):
                return Holder(None, "its lock file changed just now", "unknown")
            bound = witness.bind(path)
            if bound is None:
                return witness.holder(path)
            kept, fd = fd, -1
            return cls(path, kept, bound, last_holder(path))
        finally:
            if fd >= 0:
                os.close(fd)

    @property
    def fd(self) -> int:
        """The lock's descriptor, close-on-exec; handed to a run's supervisor and nobody else."""
        return self._fd

    @property
    def fds(self) -> tuple[int, ...]:
        """All that a run's supervisor must inherit to hold the lease: the lock and its witness."""
        return (self._fd, self._witness.fileno())

    def check(self) -> bool:
        """Put the lock file back if somebody deleted or replaced it; True when that was needed.

        Raises LeaseBusy when another process has locked the file that took its place.
        """
        if _is_file(self._fd, self.path):
            return False
        fd = _open(self.path)
        try:
            if not _lock_soon(fd):
                raise LeaseBusy(
                    f"{self.path} was deleted while it was held, and its place was taken by "
                    f"{said(self.path) or 'an unknown process'}."
                )
            os.dup2(fd, self._fd, inheritable=False)
        finally:
            os.close(fd)
        self._write()
        return True

    def tell(self, purpose: str, run_dir: Path | None = None) -> None:
        """Write who holds the lock and for what; the file is put back first if it is gone."""
        where = None if run_dir is None else str(run_dir.resolve())
        self._told = Holder(identity.current(), purpose, utc_text(), where)
        if not self.check():
            self._write()

    def _write(self) -> None:
        data = dump(self._told.to_json()).encode()
        # What is written for people must not end a night: a full disk leaves the lock whole.
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, data, 0)

    def release(self) -> None:
        """Give the lock back; harmless when it was given back before.

        Only descriptors are closed.  An explicit unlock would also free the lock under a
        supervisor that shares the descriptor.
        """
        if self._fd < 0:
            return
        told = self._told
        self._told = Holder(
            told.identity, told.purpose, told.since_utc, told.run_dir, utc_text()
        )
        self._write()
        self._close()

    def _close(self) -> None:
        self._witness.close()
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


def holder(path: Path) -> Holder | None:
    """Who holds the lock now; None when it is free (whatever the file says)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        fd = -1
    try:
        if fd < 0 or _lock(fd, fcntl.LOCK_SH):
            return None if witness.inode(path) is None else witness.holder(path)
    finally:
        if fd >= 0:
            os.close(fd)
    return said(path) or Holder(None, "unknown", "unknown")


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


__all__ = ["Lease", "daemon_path", "describe", "device_path", "holder"]
