"""What a night is given for its heads, kept as it was when the night began.

A suite that is edited or deleted meanwhile would judge heads by prompts that their corpus was never
kept apart from.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import replace
from pathlib import Path

from flywheel import suite
from flywheel.errors import HeadError, UsageError
from flywheel.heads import archive
from flywheel.loop.order import Order

FOLDER = "given"


def kept(order: Order) -> Order:
    """The order with copies of its own, beside the ledger, of all that is not the engine's.

    UsageError or HeadError for what cannot be read any more.
    """
    folder = order.forge_dir / FOLDER
    judged = None if order.heads.suite is None else _suite(order.heads.suite, folder)
    if judged is None and not _shipped(order.suite):
        # A suite that is none is the engine's to refuse.
        with contextlib.suppress(UsageError):
            judged = _suite(order.suite, folder)
    chats = None if order.heads.chats is None else _file(order.heads.chats, folder)
    return replace(
        order,
        holdout=None if order.holdout is None else _suite(order.holdout, folder),
        heads=replace(order.heads, suite=judged, chats=chats),
    )


def _suite(path: Path, folder: Path) -> Path:
    return path if _shipped(path) else suite.copied(path, folder)


def _shipped(path: Path) -> bool:
    return suite.engine_assets() in path.parents


def _file(path: Path, folder: Path) -> Path:
    """A copy of a file, named by its content and written once."""
    try:
        made = folder / f"{archive.sha256(path)[:12]}{path.suffix}"
        if not made.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            part = made.with_name(f".{made.name}.{os.getpid()}.part")
            shutil.copyfile(path, part)
            part.replace(made)
    except OSError as error:
        raise HeadError(f"cannot keep {path}: {error.strerror}.") from None
    return made
