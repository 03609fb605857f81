"""Reading a checkpoint from disk: streamed shards, decoded tensors, and one hash over all of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine import synthetic
from engine.errors import CheckpointError
from engine.formats import decode_fp8, decode_mxfp4
from engine.geometry import Geometry, synthetic_name
from engine.weights import DraftWeights, Weights, assemble, assemble_draft, laid_out

_INDEX = "model.safetensors.index.json"
_CHUNK_BYTES = 1 << 22


def shards(checkpoint: Path) -> list[Path]:
    """The safetensors files of a checkpoint folder, by its index or by name."""
    index = checkpoint / _INDEX
    if index.exists():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
            files = [checkpoint / name for name in names]
        except (
            OSError,
            ValueError,
            LookupError,
            AttributeError,
            TypeError,
            RecursionError,
        ) as error:
            raise CheckpointError(f"{index} is not a valid shard index: {error}.") from None
        missing = [path.name for path in files if not path.exists()]
        if missing:
            raise CheckpointError(f"{checkpoint} lacks the shard {missing[0]} named by its index.")
        return files
    files = sorted(checkpoint.glob("model*.safetensors"))
    if not files:
        raise CheckpointError(f"{checkpoint} holds no model*.safetensors file.")
    return files


def checkpoint_sha256(checkpoint: Path, head: Path | None = None) -> str:
    """One hash over config.json and every shard (and a separate head), names included.

    A `synthetic:NAME` model has no shards: its hash is that of what its weights are drawn from.
    """
    if (name := synthetic_name(checkpoint)) is not None:
        return synthetic.sha256(name)
    digest = hashlib.sha256()
    files = [checkpoint / "config.json", *shards(checkpoint)]
    for path in [*files, *(shards(head) if head else [])]:
        digest.update(path.name.encode() + b"\0")
        with path.open("rb") as stream:
            while block := stream.read(_CHUNK_BYTES):
                digest.update(block)
    return digest.hexdigest()


def load_weights(
    checkpoint: Path,
    geometry: Geometry,
    *,
    head: Path | None = None,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> Weights:
    """Decode every tensor into `dtype`; a separate `head` folder replaces the `mtp.*` tensors.

    Raises CheckpointError for a truncated shard, a repeated, missing or unused tensor, a wrong
    shape, and values that are not finite.
    """
    raw = _read_all(checkpoint)
    if head is not None:
        raw = {name: t for name, t in raw.items() if not name.startswith("mtp.")}
        extra = _read_all(head)
        stray = next((name for name in extra if not name.startswith("mtp.")), None)
        if stray is not None:
            raise CheckpointError(f"The head {head} holds {stray}, which is not an mtp.* tensor.")
        raw |= extra
    return laid_out(assemble(_ready(raw, dtype, device, progress), geometry))


def load_draft(head: Path, geometry: Geometry, *, dtype: torch.dtype) -> DraftWeights:
    """Decode the head in a folder of a head or a checkpoint, on the CPU.

    Errors are those of `load_weights`.
    """
    raw = {n: t for n, t in _read_all(head).items() if n.startswith("mtp.")}
    return laid_out(assemble_draft(_ready(raw, dtype, "cpu", None), geometry))


def _ready(
    raw: dict[str, Tensor],
    dtype: torch.dtype,
    device: str,
    progress: Callable[[int, int], None] | None,
) -> dict[str, Tensor]:
    """Every tensor decoded, proved finite, and where it is computed with."""
    decoded: dict[str, Tensor] = {}
    total = len(raw)
    for name, tensor in _decode(raw):
        if tensor.is_floating_point():
            if not torch.isfinite(tensor).all():
                raise CheckpointError(f"The tensor {name} holds values that are not finite.")
            keep = _stays_float32(name)
            tensor = tensor.to(device=device, dtype=torch.float32 if keep else dtype)
        else:
            tensor = tensor.to(device)
        decoded[name] = tensor
        if progress is not None:
            progress(len(decoded), total)
    return decoded


def _stays_float32(name: str) -> bool:
    """Hyper-connections, norms, sinks and router biases are float32 arithmetic in every dtype."""
    leaf = name.rsplit(".", 1)[-1]
    return leaf.startswith("hc_") or leaf in ("ape", "attn_sink", "bias") or "norm" in name


def _read_all(folder: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for path in shards(folder):
        try:
            with safe_open(path, framework="pt") as stream:
                for name in stream.keys():  # noqa: SIM118 (the reader is not a mapping)
                    if name in tensors:
                        raise CheckpointError(f"The tensor {name} appears in two shards.")
                    tensors[name] = stream.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"The shard {path} is damaged or truncated: {error}.") from None
    return tensors


def _decode(raw: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield float32 (or integer) tensors under their native names, scales consumed."""
    used: set[str] = set()
    for name in sorted(raw):
        tensor = raw[name]
        if name.endswith(".scale"):
            continue
        if tensor.dtype in (torch.float8_e4m3fn, torch.int8):
            scale_name = name.removesuffix("weight") + "scale"
            scale = raw.get(scale_name)
            if scale is None:
                raise CheckpointError(f"The quantised tensor {name} has no {scale_name}.")
            if scale.dtype not in (torch.float8_e8m0fnu, torch.uint8):
                raise CheckpointError(f"The scale {scale_name} is {scale.dtype}, not E8M0.")
            used.add(scale_name)
            yield name, _decode_quantised(name, tensor, scale)
        elif tensor.dtype in (torch.bfloat16, torch.float32):
            yield name, tensor.to(torch.float32, copy=True)  # what was read maps the file itself
        elif tensor.dtype == torch.int64:
            yield name, tensor.clone()
        else:
            raise CheckpointError(f"The tensor {name} has the unexpected type {tensor.dtype}.")
    stray = sorted(n for n in raw if n.endswith(".scale") and n not in used)
    if stray:
        raise CheckpointError(f"The scale {stray[0]} belongs to no quantised tensor.")


def _decode_quantised(name: str, tensor: Tensor, scale: Tensor) -> Tensor:
    fp8 = tensor.dtype == torch.float8_e4m3fn
    n, k = tensor.shape
    expected = (-(-n // 128), -(-k // 128)) if fp8 else (n, k * 2 // 32)
    if tuple(scale.shape) != expected:
        raise CheckpointError(
            f"The scale of {name} has shape {tuple(scale.shape)}; {expected} is needed."
        )
    return decode_fp8(tensor, scale) if fp8 else decode_mxfp4(tensor, scale)
