"""Where a ledger can be kept: a local, writable folder. Standard library only."""

from __future__ import annotations

import os
from pathlib import Path

from flywheel.errors import LedgerError, LedgerPlaceError

ALLOW_VARIABLE = "FLYWHEEL_ALLOW_NETWORK_LEDGER"
MOUNTS = Path("/proc/self/mountinfo")
# File systems whose locks another host may not see, or that lose what was synced.
NETWORK = (
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "gpfs",
    "beegfs", "ncpfs", "vboxsf", "davfs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph",
    "fuse.s3fs", "fuse.rclone", "fuse.davfs2", "fuse.curlftpfs", "fuse.smbnetfs",
    "fuse.gcsfuse", "fuse.juicefs", "fuse.goofys", "fuse.mount-s3",
)  # fmt: skip


def check(path: Path) -> None:
    """Raise unless a ledger at `path` can be appended to; changes nothing.

    A missing folder is a LedgerError; a read-only file or folder, or a network file system, a
    LedgerPlaceError.
    """
    folder = path.parent
    if not folder.is_dir():
        raise LedgerError(f"the folder of the ledger, {folder}, does not exist")
    if path.is_dir():
        raise LedgerError(f"{path} is a folder, not a ledger")
    for place in (folder, path):
        if place.exists() and not os.access(place, os.W_OK):
            raise LedgerPlaceError(
                f"{place} is read-only; the ledger and its folder (for its journal) must be "
                "writable"
            )
    kind = filesystem(path)
    if kind in NETWORK and os.environ.get(ALLOW_VARIABLE) != "1":
        raise LedgerPlaceError(
            f"{path} lies on a network file system ({kind}), where locks cannot be trusted; keep "
            f"it on a local disk, or set {ALLOW_VARIABLE}=1 if no other host ever opens it"
        )


def filesystem(path: Path) -> str | None:
    """The type of the file system that a path lies on; None where the system does not tell."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    real, found, longest = path.resolve(), None, -1
    for line in lines:
        left, _, right = line.partition(" - ")
        parts, kind = left.split(), right.split()[:1]
        if len(parts) < 5 or not kind:
            continue
        point = Path(_unescaped(parts[4]))
        # Of two mounts on one point the later hides the earlier.
        if real.is_relative_to(point) and len(point.parts) >= longest:
            found, longest = kind[0], len(point.parts)
    return found


def _unescaped(text: str) -> str:
    for code, letter in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, letter)
    return text
