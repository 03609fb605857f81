"""Writing a file that a person asked for by name, and nothing that cannot be made again."""

from __future__ import annotations

from pathlib import Path

from flywheel.errors import UsageError

_SQLITE = b"SQLite format 3\x00"


def writable(path: Path) -> Path:
    """The path, with its folder made; UsageError where nothing can or should be written.

    A ledger is never overwritten by what is made from it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            with path.open("rb") as stream:
                if stream.read(len(_SQLITE)) == _SQLITE:
                    raise UsageError(f"{path} is a ledger; give the new file another name.")
        with path.open("ab"):
            pass
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error
    return path


def write(path: Path, text: str) -> None:
    """Write it; UsageError as of `writable`."""
    try:
        writable(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error


def stale(path: Path, text: str) -> bool:
    """Whether the file holds anything but that text, or cannot be read."""
    try:
        return path.read_text(encoding="utf-8") != text
    except (OSError, ValueError):
        return True
