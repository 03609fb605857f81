"""A small disk of one's own that can really be filled."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from flywheel.selftest.fault import NotPermitted

FILLER = ".filler"


class SmallDisk:
    """A tmpfs mounted on a folder; NotPermitted where mounting is not allowed."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "flywheel-selftest", str(folder)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise NotPermitted(f"no tmpfs can be mounted here: {done.stderr.strip()}")

    def fill(self, leave_bytes: int = 0) -> None:
        """Take all space but so much."""
        fd = os.open(self.folder / FILLER, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            free = self.free_bytes() - leave_bytes
            if free > 0:
                os.posix_fallocate(fd, 0, os.fstat(fd).st_size + free)
        finally:
            os.close(fd)

    def free_bytes(self) -> int:
        """What is left."""
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def clear(self) -> None:
        """Give the space back."""
        (self.folder / FILLER).unlink(missing_ok=True)

    def unmount(self) -> None:
        """Take the disk away, whoever still uses it."""
        subprocess.run(["umount", "-l", str(self.folder)], capture_output=True, check=False)
