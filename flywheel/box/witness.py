"""The abstract socket that stands beside a lock file: nobody can delete it.

Whoever locks the file but finds its witness bound has a new file of an old name.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import socket
import tempfile
from pathlib import Path

from flywheel.box import identity
from flywheel.box.holder import Holder
from flywheel.errors import LeaseError

SHARED_FOLDER = Path("/run/lock")
_UNIX_SOCKETS = Path("/proc/net/unix")


def name(path: Path) -> str:
    """The abstract socket that stands for a lock file.

    In a folder that all share the file's name is enough, so that users whose shared folders
    differ still meet.
    """
    if path.parent in (SHARED_FOLDER, Path(tempfile.gettempdir())):
        return path.name
    return "flywheel-" + hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]


def bind(path: Path) -> socket.socket | None:
    """The witness, close-on-exec; None when another process has it."""
    witness = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        witness.bind("\0" + name(path))
    except OSError as error:
        witness.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise LeaseError(f"the witness of {path} cannot be bound ({error.strerror}).") from error
    return witness


def inode(path: Path) -> str | None:
    """The inode of the bound witness of a lock file, as ``/proc/net/unix`` has it; None: free."""
    wanted = "@" + name(path)
    try:
        lines = _UNIX_SOCKETS.read_text(errors="replace").splitlines()
    except OSError:
        return None
    rows = (line.split(maxsplit=7) for line in lines)
    return next((row[6] for row in rows if len(row) == 8 and row[7] == wanted), None)


def holder(path: Path) -> Holder:
    """Who has the witness, as far as this user may look into other processes."""
    wanted = f"socket:[{inode(path)}]"
    for entry in sorted((one for one in os.listdir("/proc") if one.isdigit()), key=int):
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{entry}/fd"):
                if os.readlink(f"/proc/{entry}/fd/{fd}") == wanted:
                    return Holder(identity.of(int(entry)), "its lock file was deleted", "unknown")
    return Holder(None, "its lock file was deleted", "unknown")
