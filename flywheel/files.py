"""Whole files or none: atomic writes and forgiving JSON reads, standard library only."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from pathlib import Path
from typing import Any


def write_atomic(path: Path, text: str, *, mode: int = 0o644, durable: bool = True) -> None:
    """Replace ``path`` by ``text`` so that a reader sees the old file or the new one, whole.

    A file that is not ``durable`` may be lost in a power cut, and costs the disk nothing now.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def read_text(path: Path) -> str:
    """The text of a regular file; OSError for anything else, such as a pipe that nobody fills.

    The mark that some editors put before the first letter is no part of it.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, encoding="utf-8-sig") as stream:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return stream.read()


def sync_folder(folder: Path) -> None:
    """Bring a folder's names to the disk, so that a new file outlives a power loss."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Some network file systems have no such call for folders; they sync names by themselves.
        with contextlib.suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)


def create_whole(path: Path, text: str) -> bool:
    """Create ``path`` with its whole content, or return False because somebody else has."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        # A hard link fails if the name is taken, and never shows a half-written file.
        os.link(part, path)
    except FileExistsError:
        return False
    finally:
        part.unlink(missing_ok=True)
    return True


def free_bytes(folder: Path) -> int | None:
    """The space left on a folder's disk; None when it does not say."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def dump(value: Any) -> str:
    """Readable JSON with a final newline."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a regular file; None when it is missing, unreadable or not an object."""
    try:
        value = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
