"""Compressed rows in the narrow formats whose numbers they are anyway: nothing is lost."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

# Channels that share a scale, of a cache row and of an index operand.
CACHE_GROUP, INDEX_GROUP = 64, 32


class Packed(NamedTuple):
    """Rows of d channels by part, line w of each part being row w's.

    A key/value row keeps its last channels in `tail` as they are, and has an E4M3 code for each of
    the others, with a power of two (E8M0) for every 64. An index key has no tail: each byte holds
    the E2M1 codes of two channels, the even one's in its lower half, with a power for every 32.
    """

    codes: Tensor  # uint8 [capacity, d - tail] or [capacity, d / 2]
    scales: Tensor  # uint8 [capacity, groups or more]; what is more is never looked at
    tail: Tensor | None = None  # [capacity, tail], BF16 or float32

    @property
    def channels(self) -> int:
        """d."""
        if self.tail is None:
            return 2 * self.codes.shape[1]
        return self.codes.shape[1] + self.tail.shape[1]

    @property
    def groups(self) -> int:
        """Powers of a row."""
        if self.tail is None:
            return self.channels // INDEX_GROUP
        return self.codes.shape[1] // CACHE_GROUP

    def first(self, count: int) -> Packed:
        """The first `count` rows."""
        tail = None if self.tail is None else self.tail[:count]
        return Packed(self.codes[:count], self.scales[:count], tail)


Rows: TypeAlias = Tensor | Packed


class Operands(NamedTuple):
    """Rows as kernels take them: plain ones have neither scales nor a tail."""

    rows: Tensor | None
    scales: Tensor | None = None
    tail: Tensor | None = None

    @property
    def tails(self) -> int:
        """Channels of a tail."""
        return 0 if self.tail is None else self.tail.shape[1]

    @property
    def bytes(self) -> int:
        """Bytes from one row's scales to the next's; 0 says that rows are plain."""
        return 0 if self.scales is None else self.scales.shape[1]


def operands(rows: Rows | None) -> Operands:
    """The tensors of `rows`, one after another."""
    return Operands(*rows) if isinstance(rows, Packed) else Operands(rows)


def tensors(rows: Rows | None) -> list[Tensor]:
    """Those of `operands` that there are."""
    return [part for part in operands(rows) if part is not None]


def capacity(rows: Rows) -> int:
    """How many rows there is room for."""
    return int((rows.codes if isinstance(rows, Packed) else rows).shape[0])


def channels(rows: Rows) -> int:
    """Channels of a row."""
    return rows.channels if isinstance(rows, Packed) else int(rows.shape[1])


def first(rows: Rows, count: int) -> Rows:
    """The first `count` of them."""
    return rows.first(count) if isinstance(rows, Packed) else rows[:count]


def fault(rows: Packed, *, keys: bool) -> str:
    """Why kernels cannot take `rows` as index keys or as key/value rows; empty if they can."""
    if keys != (rows.tail is None):
        return "packed keys have no tail, and packed rows have one"
    parts = tensors(rows)
    if any(part.dim() != 2 or part.shape[0] != parts[0].shape[0] for part in parts):
        return "the parts of packed rows are not equally many lines"
    if rows.codes.dtype != torch.uint8 or rows.scales.dtype != torch.uint8:
        return "codes and scales of packed rows are not bytes"
    if rows.tail is not None and rows.tail.dtype not in (torch.bfloat16, torch.float32):
        return f"a tail is {rows.tail.dtype}: not BF16 or float32"
    if not all(part.is_contiguous() for part in parts):
        return "the parts of packed rows are not contiguous"
    if not keys and (rows.codes.shape[1] % CACHE_GROUP or not rows.codes.shape[1]):
        return f"{rows.codes.shape[1]} channels in groups of {CACHE_GROUP}"
    if keys and (rows.channels < INDEX_GROUP or rows.channels & (rows.channels - 1)):
        return f"packed keys of {rows.channels} channels: no power of two from {INDEX_GROUP}"
    if rows.scales.shape[1] < rows.groups:
        return f"{rows.scales.shape[1]} scales a row for {rows.groups} groups"
    return ""
