"""A checkpoint's own word: the headers of its shards, compared with what config.json implies.

Headers are a few megabytes of JSON in front of the tensors; the tensors themselves are not read.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from engine.checkpoint import shards
from engine.errors import CheckpointError
from engine.formats import FP4_GROUP, FP8_BLOCK
from engine.geometry import Geometry
from engine.tensors import Entry, entries

_LENGTH_BYTES = 8
_LONGEST_HEADER = 100_000_000  # the format's own limit
_DTYPES = {"fp4": ("I8",), "fp8": ("F8_E4M3",), "bf16": ("BF16",), "f32": ("F32",), "i64": ("I64",)}
_SCALE_DTYPES = ("F8_E8M0", "U8")
_ELEMENT_BYTES = {"I8": 1, "U8": 1, "F8_E4M3": 1, "F8_E8M0": 1, "BF16": 2, "F32": 4, "I64": 8}


@dataclass(frozen=True, slots=True)
class Header:
    """One tensor as a shard's header describes it."""

    dtype: str
    shape: tuple[int, ...]
    size_bytes: int

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


def read(checkpoint: Path) -> dict[str, Header]:
    """Every tensor of every shard by name; CheckpointError for a damaged or doubled one."""
    found: dict[str, Header] = {}
    for shard in shards(checkpoint):
        for name, header in _headers(shard):
            if name in found:
                raise CheckpointError(f"The tensor {name} appears in two shards.")
            found[name] = header
    return found


def check(found: dict[str, Header], geometry: Geometry) -> None:
    """Raise CheckpointError for the first tensor that config.json does not imply, or implies."""
    left = dict(found)
    for name, dtypes, shape in _implied(geometry):
        header = left.pop(name, None)
        if header is None:
            raise CheckpointError(f"No shard holds the tensor {name}.")
        if header.dtype not in dtypes or header.shape != shape:
            raise CheckpointError(
                f"The tensor {name} is {header} in its shard; "
                f"config.json implies {dtypes[0]} {list(shape)}."
            )
    if left:
        raise CheckpointError(f"config.json implies no tensor {min(left)}, but a shard holds it.")


def _implied(geometry: Geometry) -> Iterator[tuple[str, tuple[str, ...], tuple[int, ...]]]:
    """Name, accepted types and shape of every tensor on disk, scales among them."""
    for entry in entries(geometry):
        shape, scale = _on_disk(entry)
        for name in entry.native:
            yield name, _DTYPES[entry.format], shape
            if scale:
                yield name.removesuffix("weight") + "scale", _SCALE_DTYPES, scale


def _on_disk(entry: Entry) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape of one native tensor and of its scales, which is empty without any."""
    if entry.format == "fp4":
        rows, columns = entry.shape
        return (rows, columns // 2), (rows, columns // FP4_GROUP)
    if entry.format == "fp8":
        rows, columns = entry.shape
        return entry.shape, (-(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK))
    return entry.shape, ()


def _headers(shard: Path) -> Iterator[tuple[str, Header]]:
    try:
        with shard.open("rb") as stream:
            length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            if not 0 < length <= _LONGEST_HEADER:
                raise ValueError(f"a header of {length} bytes")
            raw = json.loads(stream.read(length))
            data_bytes = stream.seek(0, os.SEEK_END) - _LENGTH_BYTES - length
        if not isinstance(raw, dict):
            raise ValueError("its header is no JSON object")
        places = []
        for name, body in raw.items():
            if name != "__metadata__":
                header, start = _header(name, body)
                places.append((start, header.size_bytes))
                yield name, header
        _check_places(places, data_bytes)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"The shard {shard} is damaged or truncated: {error}.") from None


def _header(name: str, body: object) -> tuple[Header, int]:
    """What a header says of one tensor, and where its bytes begin."""
    told = body if isinstance(body, dict) else {}
    dtype, shape, offsets = (told.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not (isinstance(dtype, str) and _naturals(shape) and _naturals(offsets)):
        raise ValueError(f"{name} has no type, shape or place")
    if len(offsets) != 2:
        raise ValueError(f"{name} has no place")
    start, end = offsets
    if dtype in _ELEMENT_BYTES and math.prod(shape) * _ELEMENT_BYTES[dtype] != end - start:
        raise ValueError(f"{name} is {dtype} {shape} and cannot take {end - start} bytes")
    return Header(dtype, tuple(shape), end - start), start


def _naturals(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _check_places(places: list[tuple[int, int]], data_bytes: int) -> None:
    """Raise ValueError unless tensors lie one behind the other and fill the file."""
    reached = 0
    for start, size in sorted(places):
        if start != reached:
            raise ValueError("its tensors overlap or leave gaps")
        reached += size
    if reached != data_bytes:
        raise ValueError("its length is not what its header says")
