"""A head as a folder that is ready to be uploaded: everything that it is, and nothing else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flywheel.errors import HeadError, UsageError
from flywheel.files import dump
from flywheel.heads import archive

SUMS = "SHA256SUMS"


def pack(root: Path, name: str, out: Path, *, readme: str, measured: Mapping[str, Any]) -> Path:
    """Write the folder `out`, which must not exist, and return it.

    It holds the archive's files, `README.md`, `measured.json` and `SHA256SUMS` over all others.
    Raises HeadError when the archive's bytes are not those of its card.
    """
    if out.exists():
        raise UsageError(f"{out} exists already; a head is packed into a new folder.")
    card = archive.card_of(root, name)
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    part.mkdir(parents=True)
    try:
        for file in (*archive.FILES, archive.CARD):
            shutil.copyfile(root / name / file, part / file)
        for file, known in card["files"].items():
            if archive.sha256(part / file) != known["sha256"]:
                raise HeadError(f"{name}: {file} has other bytes than its card says.")
        (part / "README.md").write_text(readme, encoding="utf-8")
        (part / "measured.json").write_text(dump(dict(measured)), encoding="utf-8")
        names = sorted(p.name for p in part.iterdir())
        sums = "".join(f"{archive.sha256(part / n)}  {n}\n" for n in names)
        (part / SUMS).write_text(sums, encoding="utf-8")
        os.rename(part, out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return out
