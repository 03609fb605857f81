"""Captured sequences as batches: a pure function of seed and number, so resuming needs no state."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from torch import Tensor

from engine.heads import capture
from engine.heads.stage import StageRefused, require


@dataclass(frozen=True, slots=True)
class Item:
    """One captured sequence of T + 1 ids, the first `prompt` of them given."""

    id: str
    category: str
    prompt: int
    ids: Tensor  # int64 [T + 1]
    taps: Tensor  # [T, taps * hidden]
    hidden: Tensor  # [T, hidden]


@dataclass(frozen=True, slots=True)
class Batch:
    """B sequences padded to one length T, and the anchors drawn in each."""

    ids: Tensor  # int64 [B, T + 1]
    taps: Tensor  # [B, T, taps * hidden], as stored
    hidden: Tensor  # [B, T, hidden], as stored
    lengths: Tensor  # int64 [B]: ids that are real
    anchors: Tensor  # int64 [B, A]: last position whose taps a block may see

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device."""
        return Batch(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})


class Room(Protocol):
    """Gives memory for a tensor of a batch, by its name; what lies there is overwritten."""

    def __call__(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor: ...


def fresh(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory of its own for every tensor."""
    return torch.empty(shape, dtype=dtype)


@dataclass(frozen=True, slots=True)
class Draw:
    """How batches are drawn: so many sequences, and anchors of each one's reply, with replacement.

    Their length is filled up to a `multiple`.
    """

    count: int
    anchors: int
    seed: int
    multiple: int = 1

    def batch(self, number: int, items: Sequence[Item], room: Room = fresh) -> Batch:
        """Batch `number`, of these sequences."""
        random = torch.Generator().manual_seed(self.seed * 9_176_867 + number)
        drawn = [draw_anchors(item, self.anchors, random) for item in items]
        return collate(items, drawn, multiple=self.multiple, room=room)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a sequence lies in its shard: its first id, its first position, and how many."""

    stream: Any
    about: dict[str, Any]
    ids: int
    start: int
    count: int
    prompt: int


class Captured:
    """The sequences of a finished capture, or the first `share` of them, read when asked for.

    The corpus takes its categories in turn, so any such share is as balanced as the whole.
    """

    def __init__(self, folder: Path, *, share: float = 1.0) -> None:
        card = require(folder, "capture")
        self.sha256: str = card["files"][capture.INDEX]["sha256"]
        self._places: list[_Place] = []
        for shard in json.loads((folder / capture.INDEX).read_text(encoding="utf-8")):
            self._open(folder / shard["name"])
        if not self._places:
            raise StageRefused(f"The capture {folder} holds no sequence.")
        self._places = self._places[: max(1, round(len(self._places) * share))]

    def _open(self, path: Path) -> None:
        stream = safe_open(path, framework="pt").__enter__()
        about = json.loads(stream.metadata()["sequences"])
        tokens = stream.get_tensor("tokens").tolist()
        prompts = stream.get_tensor("prompts").tolist()
        start = 0
        for number, (entry, count, prompt) in enumerate(zip(about, tokens, prompts, strict=True)):
            # Each sequence has one id more than it has positions.
            self._places.append(_Place(stream, entry, start + number, start, count, prompt))
            start += count
        if start + len(tokens) != stream.get_slice("ids").get_shape()[0]:
            raise StageRefused(f"The ids of {path} do not fit its positions.")

    def __len__(self) -> int:
        return len(self._places)

    @property
    def longest(self) -> int:
        """Positions of the longest sequence."""
        return max(place.count for place in self._places)

    def only(self, number: int) -> Captured:
        """The same capture, narrowed to one sequence."""
        narrow = copy.copy(self)
        narrow._places = self._places[number : number + 1]
        return narrow

    def item(self, number: int) -> Item:
        """One sequence by its place."""
        place = self._places[number]
        states = slice(place.start, place.start + place.count)
        return Item(
            place.about["id"], place.about["category"], place.prompt,
            place.stream.get_slice("ids")[place.ids : place.ids + place.count + 1].long(),
            place.stream.get_slice("taps")[states],
            place.stream.get_slice("hidden")[states],
        )  # fmt: skip

    def batch(self, number: int, draw: Draw, room: Room = fresh) -> Batch:
        """Batch `number` of an endless sequence of epochs, each in an order of its own, on the CPU.

        `room` gives the memory.
        """
        first = number * draw.count
        chosen = [self._drawn(first + i, draw.seed) for i in range(draw.count)]
        return draw.batch(number, [self.item(place) for place in chosen], room)

    def _drawn(self, position: int, seed: int) -> int:
        epoch, place = divmod(position, len(self))
        random = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        return int(torch.randperm(len(self), generator=random)[place])


def draw_anchors(item: Item, count: int, random: torch.Generator) -> Tensor:
    """`count` anchors [count] in the reply: the token after each is the last that is committed."""
    first, last = item.prompt - 1, len(item.ids) - 3
    return first + torch.randint(0, max(1, last - first + 1), (count,), generator=random)


def collate(
    items: Sequence[Item], anchors: Sequence[Tensor], *, multiple: int = 1, room: Room = fresh
) -> Batch:
    """Pad to a `multiple` with zeros; no anchor of a sequence sees beyond its own end."""
    count, length = len(items), max(len(item.taps) for item in items)
    length += -length % multiple

    def padded(name: str, size: int) -> Tensor:
        rows = [getattr(item, name) for item in items]
        out = room(name, (count, size, *rows[0].shape[1:]), rows[0].dtype)
        for place, row in zip(out, rows, strict=True):
            place[: len(row)] = row
            place[len(row) :] = 0
        return out

    lengths = room("lengths", (count,), torch.int64)
    drawn = room("anchors", (count, len(anchors[0])), torch.int64)
    return Batch(
        padded("ids", length + 1), padded("taps", length), padded("hidden", length),
        lengths.copy_(torch.tensor([len(item.ids) for item in items])),
        drawn.copy_(torch.stack(list(anchors))),
    )  # fmt: skip
