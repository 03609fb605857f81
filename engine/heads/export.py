"""A trained head as the checkpoint's own formats: fresh power-of-two scales, experts untouched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from engine.checkpoint import shards
from engine.errors import CheckpointError
from engine.formats import encode_fp8
from engine.geometry import Geometry
from engine.heads.head import Head, is_draft, is_expert, raw_tensors
from engine.heads.stage import write_json
from engine.tensors import Entry, entries
from engine.train.card import sha256
from engine.train.export import decode

FILE = "model.safetensors"
INSTALLED = "model-head.safetensors"
WORST_ROUND_TRIP = 0.10
_INDEX = "model.safetensors.index.json"


def export(head: Head, out: Path) -> dict[str, Any]:
    """Write `out`/model.safetensors and return its hash, size and round-trip errors.

    Raises CheckpointError naming a tensor that its format would change by more than a tenth, and
    when the file does not read back as what was trained.
    """
    disk, lost = encode(head.masters(), head.raw, head.geometry)
    out.mkdir(parents=True, exist_ok=True)
    path, partial = out / FILE, out / "model.partial"
    save_file(disk, partial, metadata={"format": "pt"})
    partial.replace(path)
    _prove(path, head)
    worst = max(lost, key=lost.__getitem__)
    return {
        "sha256": sha256(path), "bytes": path.stat().st_size, "tensors": len(disk),
        "trained_tensors": len(lost), "worst_round_trip": lost[worst], "worst_tensor": worst,
    }  # fmt: skip


def encode(
    trained: Mapping[str, Tensor], raw: Mapping[str, Tensor], geometry: Geometry
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """On-disk tensors of a head, and the relative round-trip error of each trained one.

    `trained` are float32 on the CPU; all others are the bytes in `raw`.
    """
    known = {e.name: e for e in entries(geometry) if is_draft(e.name) and not is_expert(e.name)}
    disk = {name: tensor for name, tensor in raw.items() if is_expert(name)}
    lost: dict[str, float] = {}
    for name, value in trained.items():
        made = _formatted(known[name], value)
        back = decode(made)[name]
        error = float((back - value).norm() / value.norm().clamp_min(1e-20))
        if not error <= WORST_ROUND_TRIP:
            raise CheckpointError(
                f"The tensor {name} loses {error:.1%} in its on-disk format, more than "
                f"{WORST_ROUND_TRIP:.0%}; nothing was exported."
            )
        lost[name] = error
        disk |= made
    if missing := sorted(raw.keys() - disk.keys()):
        raise CheckpointError(f"The export lacks the tensor {missing[0]}.")
    return dict(sorted(disk.items())), lost


def _formatted(entry: Entry, value: Tensor) -> dict[str, Tensor]:
    if not bool(value.isfinite().all()):
        raise CheckpointError(f"The tensor {entry.name} holds values that are not finite.")
    if entry.format == "fp8":
        codes, scale = encode_fp8(value)
        return {entry.name: codes, entry.name.removesuffix(".weight") + ".scale": scale}
    narrow = value.bfloat16() if entry.format == "bf16" else value
    return {entry.name: narrow.contiguous()}


def _prove(path: Path, head: Head) -> None:
    raw = raw_tensors(path.parent, is_draft)
    back = decode({n: t for n, t in raw.items() if not is_expert(n)})
    for name, tensor in head.native().items():
        if not torch.equal(back[name], tensor):
            raise CheckpointError(f"The tensor {name} does not read back as it was trained.")
    for name, tensor in head.raw.items():
        same = raw[name].view(torch.uint8), tensor.view(torch.uint8)
        if is_expert(name) and not torch.equal(*same):
            raise CheckpointError(f"The expert tensor {name} is not the bytes it was.")


def install(checkpoint: Path, head: Path, out: Path) -> None:
    """Make `out` a checkpoint of its own: that of `checkpoint` with the head of `head` in it.

    Shards without head tensors are hard links where the disk allows it. Raises CheckpointError
    when `out` exists or the head is no head of this geometry.
    """
    if out.exists():
        raise CheckpointError(f"{out} exists already; a head is installed into a new folder.")
    theirs = raw_tensors(head, is_draft)
    wanted = raw_tensors(checkpoint, is_draft)
    if odd := sorted(theirs.keys() ^ wanted.keys()):
        raise CheckpointError(f"The head {head} does not fit {checkpoint}: {odd[0]}.")
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    places: dict[str, str] = {}
    for path in shards(checkpoint):
        kept = _backbone(path)
        if kept is None:
            _link(path, partial / path.name)
        elif kept:
            save_file(kept, partial / path.name, metadata={"format": "pt"})
        names = _names(path) if kept is None else kept
        places |= dict.fromkeys((n for n in names), path.name)
    save_file(theirs, partial / INSTALLED, metadata={"format": "pt"})
    places |= dict.fromkeys(theirs, INSTALLED)
    write_json(partial / _INDEX, {"metadata": {}, "weight_map": dict(sorted(places.items()))})
    for path in checkpoint.iterdir():
        if path.is_file() and path.suffix != ".safetensors" and path.name not in (_INDEX,):
            _link(path, partial / path.name)
    partial.rename(out)


def _names(path: Path) -> list[str]:
    with safe_open(path, framework="pt") as stream:
        return list(stream.keys())


def _backbone(path: Path) -> dict[str, Tensor] | None:
    """The tensors of a shard that are not the head's; None where none of them is."""
    names = _names(path)
    if not any(map(is_draft, names)):
        return None
    with safe_open(path, framework="pt") as stream:
        return {name: stream.get_tensor(name) for name in names if not is_draft(name)}


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
