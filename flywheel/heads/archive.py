"""`heads/NAME/`: weights, card, metrics and the unedited log of every head that was ever trained.

A head is archived before it is judged and whatever the verdict. Nothing there is written twice and
nothing is deleted; the card holds the hash of every other file, the ledger that of the card.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flywheel.errors import HeadError, UsageError
from flywheel.files import create_whole, dump, read_json, sync_folder
from flywheel.ledger.rows import HeadRow

FOLDER = "heads"
WEIGHTS, METRICS, LOG, CARD = (
    "model.safetensors", "train_metrics.json", "train.log", "head_card.json",
)  # fmt: skip
FILES = (WEIGHTS, METRICS, LOG)
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}\Z")
_CHUNK_BYTES = 1 << 22


def root_of(ledger: Path) -> Path:
    """The archive beside a ledger."""
    return ledger.parent / FOLDER


def archive(
    root: Path, name: str, files: Mapping[str, Path], about: Mapping[str, Any], *, now_utc: str
) -> dict[str, Any]:
    """Copy a trained head into the archive and return its card.

    `files` maps each of FILES to where it lies now; `about` goes into the card. Raises UsageError
    for a name that cannot be one or is taken, HeadError for a file that is not there.
    """
    check_name(name)
    if (root / name).exists():
        raise UsageError(f"the archive has a head {name} already; nothing there is overwritten.")
    if missing := [k for k in FILES if k not in files or not files[k].is_file()]:
        raise HeadError(f"the head {name} has no {missing[0]} to archive.")
    root.mkdir(parents=True, exist_ok=True)
    part = root / f".{name}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    for kind in FILES:
        _copy(files[kind], part / kind)
    card = {
        "name": name, "created_utc": now_utc, **about,
        "files": {kind: _entry(part / kind) for kind in FILES},
    }  # fmt: skip
    (part / CARD).write_text(dump(card), encoding="utf-8")
    _seal(part)
    # A rename onto a folder that is not empty fails, so a head is never replaced.
    os.rename(part, root / name)
    sync_folder(root)
    return card


def proof_file(run_id: str) -> str:
    """The file beside a head that holds the word of its proof in service."""
    return f"staged-{run_id}.json"


def note(root: Path, name: str, file: str, content: Mapping[str, Any]) -> None:
    """Leave one more file with a head, once; what is there already stays as it is."""
    path = root / name / file
    if create_whole(path, dump(dict(content))):
        path.chmod(0o444)


def card_of(root: Path, name: str) -> dict[str, Any]:
    """A head's card; HeadError when it is not there or cannot be read."""
    card = read_json(root / name / CARD)
    if card is None or card.get("name") != name:
        raise HeadError(f"the archive at {root} holds no readable head {name}.")
    return card


def weights_sha256(root: Path, name: str) -> str:
    """The hash that the engine will find a head's weights to have."""
    return str(card_of(root, name)["files"][WEIGHTS]["sha256"])


def problems(root: Path, row: HeadRow, *, full: bool) -> tuple[str, ...]:
    """What is wrong with an archived head; with `full` every byte is hashed again."""
    folder = root / row.name
    if not folder.is_dir():
        return (f"{row.name}: its folder is gone",)
    if read_json(folder / CARD) != row.card:
        return (f"{row.name}: its card is not the one on record",)
    found = []
    for file, known in row.card["files"].items():
        path = folder / file
        if not path.is_file():
            found.append(f"{row.name}: {file} is gone")
        elif path.stat().st_size != known["bytes"]:
            found.append(f"{row.name}: {file} has another size")
        elif full and sha256(path) != known["sha256"]:
            found.append(f"{row.name}: {file} has other bytes")
    if row.card["files"][WEIGHTS]["sha256"] != row.weights_sha256:
        found.append(f"{row.name}: the ledger knows other weights")
    return tuple(found)


def strangers(root: Path, known: set[str]) -> tuple[str, ...]:
    """Folders of the archive that the ledger does not know."""
    if not root.is_dir():
        return ()
    found = sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    return tuple(f"{name}: the ledger does not know it" for name in found if name not in known)


def check_name(name: str) -> None:
    """UsageError for what cannot be the name of a folder anywhere."""
    if not _NAME.match(name):
        raise UsageError(
            f"{name!r} cannot name a head: small letters, digits, dots, dashes, underscores."
        )


def sha256(path: Path) -> str:
    """Hash of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_CHUNK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as read, target.open("wb") as write:
        shutil.copyfileobj(read, write, _CHUNK_BYTES)
        write.flush()
        os.fsync(write.fileno())


def _entry(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def _seal(folder: Path) -> None:
    for path in folder.iterdir():
        path.chmod(0o444)
    sync_folder(folder)
