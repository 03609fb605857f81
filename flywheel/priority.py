"""The levers that a person wants tried first: one name a line, `#` begins a comment.

The file lies next to the ledger and is read anew before every choice, so it steers a running loop.
"""

from __future__ import annotations

from pathlib import Path

from flywheel.errors import LeverError
from flywheel.files import read_text

FILE = "PRIORITY"


def path_for(ledger: Path) -> Path:
    """Where the priority file of a ledger lies."""
    return ledger.parent / FILE


def read(ledger: Path) -> tuple[str, ...]:
    """The names in it, first things first; none where there is no file. LeverError: unreadable."""
    path = path_for(ledger)
    try:
        lines = read_text(path).splitlines()
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise LeverError(f"{path} cannot be read: {error}") from error
    names = (line.partition("#")[0].strip() for line in lines)
    return tuple(dict.fromkeys(name for name in names if name))
