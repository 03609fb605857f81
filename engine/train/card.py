"""`card.json`: where a checkpoint comes from and what it was seen to do."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from pathlib import Path
from typing import Any

import torch


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def machine(device: torch.device) -> dict[str, Any]:
    """Hardware and versions of this process."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    return {
        "device": device.type,
        "name": name or platform.machine(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
    }


def write(
    out: Path,
    *,
    device: torch.device,
    files: tuple[str, ...],
    corpus: dict[str, Any],
    facts: dict[str, Any],
) -> None:
    """Write `out`/card.json over the `files` there; `corpus` is corpus.json, `facts` the rest."""
    card = {
        "name": out.name,
        "what": "A small checkpoint of the DeepSeek-V4 architecture with a DSpark draft head, "
        "trained from random values by this project.",
        "command": ["python", "-m", "engine.train", *map(_portable, sys.argv[1:])],
        "machine": machine(device),
        **facts,
        "corpus": corpus,
        "files": {
            name: {"bytes": (out / name).stat().st_size, "sha256": sha256(out / name)}
            for name in files
            if (out / name).is_file()
        },
    }
    (out / "card.json").write_text(json.dumps(card, indent=1, ensure_ascii=False) + "\n")


def _portable(argument: str) -> str:
    """An absolute path means nothing on another machine; its last part does."""
    return Path(argument).name if argument.startswith("/") else argument
