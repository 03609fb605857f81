"""Files that somebody names: whole texts of regular files, standard library only."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_text(path: Path) -> str:
    """The text of a regular file; OSError for anything else, such as a pipe that nobody fills.

    The mark that some editors put before the first letter is no part of it.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as stream:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
            said = os.strerror(code) if code == errno.EISDIR else "it is not a regular file"
            raise OSError(code, said, str(path))
        return stream.read().decode("utf-8-sig")
