"""Token rows for training, a pure function of (seed, batch number): resuming needs no reader state.

A split is one uint16 file of documents, each BOS ... EOS. Every epoch lays the documents out in a
new order and cuts that stream into rows; a row is moved back to the start of the document it would
begin in, unless most of a row would be spent on getting there and the document never fits one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from engine.errors import EngineError
from engine.geometry import Geometry
from engine.tokenizer import ASSISTANT, CONTROL_TOKENS, THINK, THINK_END, USER

USER_ID = CONTROL_TOKENS.index(USER)
ASSISTANT_ID = CONTROL_TOKENS.index(ASSISTANT)
_THINKING_IDS = (CONTROL_TOKENS.index(THINK), CONTROL_TOKENS.index(THINK_END))


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of T tokens and what to predict, all [B, T]."""

    ids: Tensor  # int64
    targets: Tensor  # int64: the next token
    weights: Tensor  # float32: how much that prediction counts
    starts: Tensor  # int64: position where the token's document begins


class Split:
    """One file of documents on a device."""

    def __init__(self, path: Path, geometry: Geometry, device: torch.device) -> None:
        try:
            ids = np.fromfile(path, dtype=np.uint16)
        except OSError as error:
            raise EngineError(f"Cannot read the corpus file {path}: {error.strerror}.") from error
        if not len(ids) or ids[0] != geometry.bos_token_id:
            raise EngineError(f"{path} does not begin with BOS, so it is not a corpus file.")
        if int(ids.max()) >= geometry.vocab_size:
            raise EngineError(f"{path} holds ids outside the vocabulary of {geometry.vocab_size}.")
        self.ids = ids
        self.begins = np.flatnonzero(ids == geometry.bos_token_id)
        self.lengths = np.diff(self.begins, append=len(ids))
        self.tokens = len(ids)
        self._device = device
        self._ids = torch.from_numpy(ids.astype(np.int32)).to(device)
        self._spoken = torch.from_numpy(spoken(ids, geometry)).to(device)

    def document(self, number: int) -> np.ndarray:
        """Ids of one document."""
        begin = self.begins[number]
        return self.ids[begin : begin + self.lengths[number]]

    def rows(self, length: int) -> int:
        """Rows of `length` in one epoch, at least 1."""
        return max(1, self.tokens // length)


class Rows:
    """Endless batches of `count` rows of `length` tokens."""

    def __init__(
        self,
        split: Split,
        count: int,
        length: int,
        *,
        seed: int,
        emphasis: float,
        open_share: float,
    ) -> None:
        """`emphasis` weighs the assistant's tokens; `open_share` of rows see across documents."""
        self._split, self._count, self._length, self._seed = split, count, length, seed
        self._emphasis, self._open = emphasis, open_share
        self.per_epoch = max(1, split.rows(length) // count)
        self._epoch = -1

    def batch(self, number: int) -> Batch:
        """Batch `number` (0, 1, ...) of the endless sequence."""
        split, device = self._split, self._split._device
        epoch, within = divmod(number, self.per_epoch)
        if epoch != self._epoch:
            self._lay_out(epoch)
        row = torch.arange(self._count, device=device) + within * self._count
        begin = row % split.rows(self._length) * self._length
        document = torch.searchsorted(self._stream, begin, right=True) - 1
        back = begin - self._stream[document]
        whole = (self._sizes[document] <= self._length) | (back < self._length // 2)
        begin = torch.where(whole, begin - back, begin)
        at = begin[:, None] + torch.arange(self._length + 1, device=device)
        at = at % split.tokens
        document = torch.searchsorted(self._stream, at, right=True) - 1
        offset = at - self._stream[document]
        token = self._begins[document] + offset
        ids = split._ids[token].long()
        weights = 1.0 + (self._emphasis - 1.0) * split._spoken[token[:, 1:]].float()
        weights = weights * (offset[:, 1:] > 0)  # nothing predicts the next document's BOS
        position = torch.arange(self._length, device=device)
        starts = (position - offset[:, :-1]).clamp_min(0)
        closed = self._closed(number).to(device)
        return Batch(ids[:, :-1], ids[:, 1:], weights, starts * closed[:, None])

    def _lay_out(self, epoch: int) -> None:
        split, device = self._split, self._split._device
        random = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
        order = torch.randperm(len(split.begins), generator=random).numpy()
        lengths = split.lengths[order]
        self._stream = torch.from_numpy(np.cumsum(lengths) - lengths).to(device)
        self._sizes = torch.from_numpy(lengths).to(device)
        self._begins = torch.from_numpy(split.begins[order]).to(device)
        self._epoch = epoch

    def _closed(self, number: int) -> Tensor:
        random = torch.Generator().manual_seed(self._seed * 7_368_787 + number)
        return (torch.rand(self._count, generator=random) >= self._open).long()


def spoken(ids: np.ndarray, geometry: Geometry) -> np.ndarray:
    """Which tokens an assistant wrote: after its header, up to and including EOS."""
    marks = np.isin(ids, (USER_ID, ASSISTANT_ID, geometry.bos_token_id))
    last = np.maximum.accumulate(np.where(marks, np.arange(len(ids)), 0))
    return (ids[last] == ASSISTANT_ID) & ~marks


def prompt_of(document: np.ndarray, geometry: Geometry, limit: int) -> list[int]:
    """The part of `document` that a user would have sent: up to the last assistant header.

    Plain text has none; its first `limit` // 4 tokens serve. At most `limit` tokens either way,
    counted from the start.
    """
    heads = np.flatnonzero(document == ASSISTANT_ID)
    if not len(heads):
        return [int(i) for i in document[: max(2, min(limit // 4, len(document) // 2))]]
    end = int(heads[-1]) + 1
    if end < len(document) and document[end] in _THINKING_IDS:  # part of the header
        end += 1
    return [int(i) for i in document[: min(end, limit)]]


def synthetic(geometry: Geometry, documents: int, seed: int) -> np.ndarray:
    """Structured random documents (repeated phrases), for rehearsals without a corpus."""
    random = np.random.default_rng(seed)
    phrases = random.integers(16, geometry.vocab_size, (64, 12))
    pieces: list[np.ndarray] = []
    for _ in range(documents):
        body = phrases[random.integers(0, 64, random.integers(4, 24))].flatten()
        cut = len(body) // 3
        pieces += [
            np.array([geometry.bos_token_id, USER_ID]), body[:cut], np.array([ASSISTANT_ID]),
            body[cut:], np.array([geometry.eos_token_id]),
        ]  # fmt: skip
    return np.concatenate(pieces).astype(np.uint16)
