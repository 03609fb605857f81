"""Files that a person names: written whole or not at all, and read with an end in sight."""

from __future__ import annotations

import os
from pathlib import Path

from flywheel.errors import UsageError
from flywheel.files import write_atomic

_SQLITE = b"SQLite format 3\x00"
MOST_BYTES = 256 * 2**20


def writable(path: Path) -> Path:
    """The path, with its folder made; UsageError where nothing can or should be written.

    Nothing is written yet, and no file is left. A ledger is never overwritten by what is made
    from it.
    """
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise UsageError(f"{path} cannot be written: {path.parent} is no folder.") from error
        if path.is_file():
            with path.open("rb") as stream:
                if stream.read(len(_SQLITE)) == _SQLITE:
                    raise UsageError(f"{path} is a ledger; give the new file another name.")
        # A pipe or a device is opened once, to be written: to whom it leads is not to be known.
        if path.is_file() or path.is_dir() or not path.exists():
            new = not path.exists()
            with path.open("ab"):
                pass
            if new:
                path.resolve().unlink()
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error
    return path


def write(path: Path, text: str) -> None:
    """Write it, whole or not at all; UsageError as of `writable`.

    A link leads to the file that is written; one that exists keeps its rights.
    """
    try:
        if writable(path).exists() and _in_place(path):
            path.write_text(text, encoding="utf-8")
            return
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o666
        write_atomic(path.resolve(), text, mode=mode, durable=False)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error


def _in_place(path: Path) -> bool:
    """Whether it is a pipe, a device, an open stream, or a file whose folder takes no other."""
    is_stream = path.absolute().parts[:2] in (("/", "dev"), ("/", "proc"))
    return is_stream or not path.is_file() or not os.access(path.resolve().parent, os.W_OK)


def text(path: Path) -> str:
    """What a file holds; bytes that are no UTF-8 stay as lone surrogates.

    UsageError where it cannot be read: a device or a pipe may have no end, a file may be larger
    than anything that a person means by it.
    """
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} cannot be read: it is no file.")
        with path.open("rb") as stream:
            raw = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    if len(raw) > MOST_BYTES:
        raise UsageError(f"{path} cannot be read: it is larger than {MOST_BYTES // 2**20} MiB.")
    return raw.decode("utf-8", "surrogateescape")


def stale(path: Path, text: str) -> bool:
    """Whether the file holds anything but that text, or cannot be read."""
    try:
        return path.read_text(encoding="utf-8") != text
    except (OSError, ValueError):
        return True
