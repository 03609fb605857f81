"""Checkpoints in the real on-disk layout: written from trained tensors, and read back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.errors import CheckpointError
from engine.formats import decode_fp8, decode_mxfp4, encode_fp8, encode_mxfp4
from engine.geometry import Geometry
from engine.tensors import entries

WORST_ROUND_TRIP = 0.10


def read(path: Path) -> dict[str, Tensor]:
    """Native names to float32 tensors (tid2eid: int64), scales folded in."""
    try:
        raw = load_file(path)
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"Cannot read the tensors of {path}: {error}.") from error
    return decode(raw)


def decode(raw: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """On-disk tensors to float32 by native name."""
    scales = {n: t for n, t in raw.items() if n.endswith(".scale")}
    ready: dict[str, Tensor] = {}
    for name, tensor in raw.items():
        scale = scales.get(name.removesuffix(".weight") + ".scale")
        if name in scales:
            continue
        if tensor.dtype == torch.int8 and scale is not None:
            ready[name] = decode_mxfp4(tensor, scale)
        elif tensor.dtype == torch.float8_e4m3fn and scale is not None:
            ready[name] = decode_fp8(tensor, scale)
        else:
            ready[name] = tensor if tensor.dtype == torch.int64 else tensor.float()
    return ready


def encode(tensors: Mapping[str, Tensor], geometry: Geometry) -> dict[str, Tensor]:
    """On-disk tensors of native CPU `tensors`; CheckpointError where the format loses too much."""
    disk: dict[str, Tensor] = {}
    for entry in entries(geometry):
        for name in entry.native:
            value = tensors[name].detach().contiguous()
            if entry.format == "i64":
                disk[name] = value.long()
                continue
            value = value.float()
            if not bool(value.isfinite().all()):
                raise CheckpointError(f"The tensor {name} holds values that are not finite.")
            scale = name.removesuffix(".weight") + ".scale"
            if entry.format == "fp4":
                disk[name], disk[scale] = encode_mxfp4(value)
            elif entry.format == "fp8":
                disk[name], disk[scale] = encode_fp8(value)
            else:
                disk[name] = value.bfloat16() if entry.format == "bf16" else value
            _check_round_trip(name, value, disk, scale)
    return disk


def write(tensors: Mapping[str, Tensor], geometry: Geometry, path: Path) -> None:
    """Encode native CPU `tensors` and write them, never leaving half a file."""
    partial = path.with_suffix(".partial")
    save_file(encode(tensors, geometry), partial, metadata={"format": "pt"})
    partial.replace(path)


def _check_round_trip(name: str, value: Tensor, disk: Mapping[str, Tensor], scale: str) -> None:
    found = {n: disk[n] for n in (name, scale) if n in disk}
    lost = (decode(found)[name] - value).norm() / value.norm().clamp_min(1e-20)
    if lost > WORST_ROUND_TRIP:
        raise CheckpointError(
            f"The tensor {name} loses {float(lost):.1%} in its on-disk format, more than "
            f"{WORST_ROUND_TRIP:.0%}; train with rounding before exporting."
        )
