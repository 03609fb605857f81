"""Filling device weights from a checkpoint: shard by shard, each tensor straight to its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.checkpoint import shards
from engine.device.weights import E8M0, FP4, FP8, Place, Places, Weights, allocate, bank
from engine.errors import CheckpointError
from engine.geometry import Geometry
from kernels.fp8_linear import check_codes
from kernels.launch import require
from kernels.narrow import E2M1_SCALES

_E8M0_NAN = 255


def load(
    checkpoint: Path,
    geometry: Geometry,
    *,
    device: torch.device | str,
    banked: bool = True,
    head: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Weights:
    """The weights of `checkpoint` in their own formats; `head` replaces its `mtp.*` tensors.

    `banked` experts are brought to the order of the kernels; their oracles take them as stored.

    Raises CheckpointError for a truncated shard, a repeated, missing or unused tensor, a wrong
    shape or type, and values that are not finite; ConfigError as `allocate` does.
    """
    weights, places = allocate(geometry, device)
    left = dict(places)
    seen: set[str] = set()
    for name, tensor in _native(checkpoint, head):
        if name in seen:
            raise CheckpointError(f"The tensor {name} appears in two shards.")
        seen.add(name)
        place = left.pop(name, None)
        if place is not None:
            _fill(name, tensor, place)
        if progress is not None:
            progress(min(len(seen), len(places)), len(places))
    _all_used(seen, places)
    if left:
        raise CheckpointError(f"The checkpoint lacks the tensor {min(left)}.")
    _all_sound(places, geometry.n_routed_experts)
    places.clear()
    model = [weights]
    del weights
    if banked:
        bank(model)
    return model[0]


def _native(checkpoint: Path, head: Path | None) -> Iterator[tuple[str, Tensor]]:
    """Every tensor by its own name, as stored."""
    for name, tensor in _read(checkpoint, skip="mtp." if head else None):
        yield name, tensor
    for name, tensor in _read(head) if head else ():
        if not name.startswith("mtp."):
            raise CheckpointError(f"The head {head} holds {name}, which is not an mtp.* tensor.")
        yield name, tensor


def _read(folder: Path, skip: str | None = None) -> Iterator[tuple[str, Tensor]]:
    for path in shards(folder):
        try:
            with safe_open(path, framework="pt") as stream:
                for name in stream.keys():  # noqa: SIM118 (the reader is not a mapping)
                    if skip is None or not name.startswith(skip):
                        yield name, stream.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"The shard {path} is damaged or truncated: {error}.") from None


def _fill(name: str, tensor: Tensor, place: Place) -> None:
    shape = tuple(place.target.shape)
    if tuple(tensor.shape) != shape:
        raise CheckpointError(
            f"The tensor {name} has shape {tuple(tensor.shape)}; config.json implies {shape}."
        )
    if place.stored in (E8M0, FP4, FP8):
        if tensor.dtype not in (place.stored, torch.uint8):
            raise CheckpointError(f"The tensor {name} is {tensor.dtype}, not {place.stored}.")
        tensor = tensor.view(place.stored)  # raw bytes: a cast would change them
    elif tensor.dtype not in (place.stored, place.target.dtype):
        raise CheckpointError(f"The tensor {name} is {tensor.dtype}, not {place.stored}.")
    for target in (place.target, *place.copies):
        target.copy_(tensor)


def _all_used(seen: set[str], places: Places) -> None:
    unused = sorted(seen - places.keys())
    if unused:
        more = f" and {len(unused) - 3} more" if len(unused) > 3 else ""
        raise CheckpointError(
            f"The checkpoint holds tensors this model does not use: {', '.join(unused[:3])}{more}."
        )


def _all_sound(places: Places, experts: int) -> None:
    """Refuse values that are not finite, or that the kernels cannot use."""
    for name, place in places.items():
        try:
            _check(name, place.target, experts)
        except ValueError as error:
            raise CheckpointError(f"The tensor {name} cannot be used: {error}.") from None


def _check(name: str, tensor: Tensor, experts: int) -> None:
    if tensor.dtype == FP8:
        check_codes(tensor)
    elif tensor.dtype == E8M0:
        low, high = _range(tensor.view(torch.uint8))
        least, most = E2M1_SCALES if ".experts." in name else (0, _E8M0_NAN - 1)
        require(
            least <= low and high <= most,
            f"its scales from 2**{low - 127} to 2**{high - 127} leave 2**{least - 127} to "
            f"2**{most - 127}, which the kernels multiply exactly",
        )
    elif tensor.dtype == torch.int64:
        low, high = _range(tensor)
        require(low >= 0 and high < experts, f"it names experts {low} to {high}")
    elif tensor.dtype != FP4:
        require(bool(torch.isfinite(tensor).all()), "it holds values that are not finite")


def _range(tensor: Tensor) -> tuple[int, int]:
    low, high = tensor.aminmax()
    return int(low), int(high)
