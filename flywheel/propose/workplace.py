"""The folder that a proposer works in: lent for one attempt, and left behind by nobody.

It may hold a copy of a whole repository. Who lends it is written beside it, so that a later attempt
can tell what a loop that was killed has left.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flywheel.box import identity
from flywheel.box.identity import Identity
from flywheel.errors import RecordError
from flywheel.files import dump, read_json, write_atomic

WORK, _OWNER = "work", "owner.json"


def new(proposals: Path) -> Path:
    """The path of an attempt's own folder; nothing is there yet."""
    return proposals / secrets.token_hex(4)


@contextmanager
def lent(folder: Path) -> Iterator[Path]:
    """The folder to work in, inside an attempt's own; that one stays if something was kept in it.

    RecordError where no folder can be made.
    """
    _sweep(folder.parent)
    work = folder / WORK
    try:
        folder.mkdir(parents=True)
        write_atomic(folder / _OWNER, dump(identity.current().to_json()), durable=False)
        work.mkdir()
    except OSError as error:
        raise RecordError(f"{work} cannot be made: {error.strerror}") from error
    try:
        yield work
    finally:
        _clear(folder)


def _sweep(proposals: Path) -> None:
    for path in proposals.glob(f"*/{_OWNER}"):
        if not identity.is_alive(Identity.from_json(read_json(path))):
            _clear(path.parent)


def _clear(folder: Path) -> None:
    shutil.rmtree(folder / WORK, ignore_errors=True)
    with contextlib.suppress(OSError):
        (folder / _OWNER).unlink()
        folder.rmdir()
