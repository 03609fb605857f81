"""Where one sequence runs: its store, the small buffers of a round, and the launches over them.

A round is made of four parts: draft a block, verify its rows, accept, settle. They are one sequence
of launches where only the device has to decide; where the host takes part they are several.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from engine.device.draft import Drafted, DraftHead, Noise
from engine.device.launches import Graphs, Launches, Tally
from engine.device.layers import Chunk, Layers, Ran
from engine.device.state import Store
from engine.state import TILE

# Where the report of a round has what, as `accept` lays it out.
_COUNT, _FINITE, _COMMITTED = 0, 1, 4


_Left = TypeVar("_Left")


class Outcome(NamedTuple):
    """What a round decided on the device, read by the host."""

    tokens: list[int]  # committed
    finite: bool
    drafts: tuple[int, ...] = ()
    margins: tuple[float, ...] = ()
    confidence: tuple[float, ...] = ()


class Seat:
    """Memory, addresses and graphs that one sequence after another uses."""

    def __init__(
        self, layers: Layers, head: DraftHead, store: Store, tally: Tally, *, graphs: bool
    ) -> None:
        self.store = store
        self._layers = layers
        self._head = head
        self._tally = tally
        device = store.arena.device
        g = layers.geometry
        taps = len(g.dspark_target_layer_ids) * g.hidden_size
        self._ids = torch.zeros(TILE, dtype=torch.int64, device=device)  # an anchor, then drafts
        self._start = torch.zeros(1, dtype=torch.int64, device=device)  # the anchor's position
        self._kept = torch.zeros(1, dtype=torch.int64, device=device)  # rows of the step that stay
        self._saved = torch.zeros((TILE, store.rings.words), dtype=torch.int32, device=device)
        self._taps = torch.zeros((TILE, taps), dtype=layers.dtype, device=device)
        self._noise = Noise(torch.zeros_like(self._start), torch.zeros(1, device=device))
        self._drawn: tuple[float, int] | None = None  # temperature and seed that the device holds
        self._anchor: int | None = None  # and the anchor, where the host knows it
        self._graphs = Graphs() if graphs else None
        self._known: dict[Hashable, Launches[Any]] = {}

    # ---------------------------------------------------------------- what the host asks for

    def round(self, token: int, width: int, noise: tuple[float, int] | None) -> Outcome:
        """Draft `width` tokens after `token`, verify them, accept and settle, in one go.

        `noise` is the temperature and seed of sampled tokens.
        """
        self._set([token])
        self._draw_by(noise)
        return self._outcome(self.rounds(width, sampled=noise is not None)(), width + 1, width)

    def draft(self, token: int, width: int, noise: tuple[float, int] | None) -> Outcome:
        """Draft only: nothing is committed, and the drafts lie ready for `confirm`."""
        self._set([token])
        self._draw_by(noise)
        values = self.read(self.blocks(width, sampled=noise is not None)()).tolist()
        columns = [values[i * width : (i + 1) * width] for i in range(3)]
        drafts = tuple(int(v) for v in columns[0])
        return Outcome([], True, drafts, tuple(columns[1]), tuple(columns[2]))

    def confirm(
        self, tokens: Sequence[int], noise: tuple[float, int] | None, *, drafting: bool
    ) -> Outcome:
        """Verify an anchor and the drafts after it, accept and settle."""
        self._set(tokens)
        self._draw_by(noise)
        steps = self.steps(len(tokens), sampled=noise is not None, drafting=drafting)
        return self._outcome(steps(), len(tokens), 0)

    def verify(self, tokens: Sequence[int]) -> Tensor:
        """Float32 scores [rows, vocab] on the host of `tokens`; the step stays open."""
        self._set(tokens)
        m = len(tokens)
        return self.read(self._launches(("verify", m), lambda: self._verify_open(m))())

    def settle(self, rows: int, kept: int, *, drafting: bool) -> None:
        """Close the step that `verify` opened: of its `rows` the first `kept` stay.

        The store's position is still that of the first row, and for the caller to move.
        """
        self._kept.fill_(kept)
        taps = self._taps[:rows]
        self._launches(
            ("settle", rows, drafting), lambda: self._settle(rows, taps, drafting=drafting)
        )()

    def prefill(self, ids: Tensor, chunk: Chunk, *, drafting: bool) -> Tensor:
        """Commit a chunk of a prompt but for the position; what the output head would read [m, d].

        `ids` int64 [m] lie on the device.
        """
        ran = self._layers.forward(ids, self.store, chunk)
        if drafting:
            kept = min(chunk.rows, self.store.named["draft"].shape[1])
            start = self.store.position + (chunk.rows - kept)
            self._kept.fill_(kept)
            self._head.extend(self.store, ran.taps[chunk.rows - kept :], start, self._kept)
        return ran.x

    def warm_up(self, width: int, *, joint: bool) -> None:
        """Run everything once as it will run, then `capture`. What the store holds is lost."""
        drafting, position = width > 0, self.store.position
        for sampled in (False, True):
            for rows in range(1, TILE + 1):
                position.zero_()
                self._decide(rows, sampled=sampled, drafting=drafting)
            for drafts in range(1, width + 1):
                torch.cat(self._draft(drafts, sampled=sampled))
        for rows in range(1, TILE + 1):
            self._verify_open(rows)
            self._settle(rows, self._taps[:rows], drafting=drafting)
        self.capture(width, joint=joint)

    def capture(self, width: int, *, joint: bool) -> None:
        """Make the graphs of greedy rounds of up to `width` drafts, so that none makes its own.

        Of rounds without drafts too, whatever the width. `joint` rounds leave nothing to the host.
        Every kernel must have run before.
        """
        self.steps(1, sampled=False, drafting=False)
        for rows in range(1, width + 2):
            if joint and rows > 1:
                self.rounds(rows - 1, sampled=False)
            else:
                self.steps(rows, sampled=False, drafting=width > 0)
            if not joint and rows > 1:
                self.blocks(rows - 1, sampled=False)

    @property
    def made(self) -> frozenset[Hashable]:
        """What is ready to be launched, by kind and rows."""
        return frozenset(self._known)

    def warm(self, rows: int) -> None:
        """Run a step of `rows` without drafts once, so that capturing it compiles nothing."""
        self.store.position.zero_()
        self._decide(rows, sampled=False, drafting=False)

    def place(self, ids: Tensor) -> None:
        """Put `ids` int64 [m] on the device where the next launches read their rows."""
        self._ids[: len(ids)].copy_(ids)
        self._anchor = None

    # ---------------------------------------------------------------- sequences of launches

    def rounds(self, width: int, *, sampled: bool) -> Launches[Tensor]:
        """Draft `width` tokens after the anchor, verify, accept, settle: report and block."""
        return self._launches(
            ("round", width, sampled), lambda: self._round(width, sampled=sampled)
        )

    def blocks(self, width: int, *, sampled: bool) -> Launches[Tensor]:
        """Draft alone: float32 tokens, margins and confidence, one after the other."""
        return self._launches(
            ("draft", width, sampled), lambda: torch.cat(self._draft(width, sampled=sampled))
        )

    def steps(self, rows: int, *, sampled: bool, drafting: bool) -> Launches[Tensor]:
        """Verify `rows`, accept, settle: the report."""
        return self._launches(
            ("step", rows, sampled, drafting),
            lambda: self._decide(rows, sampled=sampled, drafting=drafting),
        )

    def _round(self, width: int, *, sampled: bool) -> Tensor:
        """Float32, which holds every token and position."""
        drafted = self._draft(width, sampled=sampled)
        report = self._decide(width + 1, sampled=sampled, drafting=True)
        return torch.cat((report, *drafted))

    def _draft(self, width: int, *, sampled: bool) -> Drafted:
        noise = self._noise if sampled else None
        drafted = self._head.draft(self.store, self._ids[:1], width, noise)
        self._ids[1 : 1 + width].copy_(drafted.tokens)
        return drafted

    def _decide(self, m: int, *, sampled: bool, drafting: bool) -> Tensor:
        """Verify `m` rows, accept, settle: the report of `accept`."""
        op, position = self._layers.operations, self.store.position
        undoable = m > 1  # the anchor always stays
        ran = self._verify(m, undoable=undoable)
        head = op.lm_head.scores(ran.x, self._layers.weights.head)
        targets = head.best.token
        if sampled:
            targets = op.sample.pick(
                head.scores, position, self._noise.seed, self._noise.temperature, ahead=1
            )
        report: Tensor = op.accept.accept(self._ids[:m], targets, head.best.finite, position)
        torch.add(report[:1], 1, out=self._kept)
        self._settle(m, ran.taps, drafting=drafting, undoable=undoable)
        return report

    def _verify(self, m: int, *, undoable: bool) -> Ran:
        store = self.store
        self._start.copy_(store.position)
        if undoable:
            op = self._layers.operations
            op.undo.save(store.arena, store.rings, store.position, self._saved[:m])
        return self._layers.forward(self._ids[:m], store)

    def _verify_open(self, m: int) -> Tensor:
        ran = self._verify(m, undoable=True)
        self._taps[:m].copy_(ran.taps)
        scores: Tensor = self._layers.operations.lm_head.scores(
            ran.x, self._layers.weights.head
        ).scores
        return scores

    def _settle(self, m: int, taps: Tensor, *, drafting: bool, undoable: bool = True) -> None:
        store = self.store
        if undoable:
            op = self._layers.operations
            op.undo.restore(store.arena, store.rings, self._start, self._kept, self._saved[:m])
        if drafting:
            self._head.extend(store, taps, self._start, self._kept)

    # ---------------------------------------------------------------- between host and device

    def _launches(self, key: Hashable, issue: Callable[[], _Left]) -> Launches[_Left]:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Launches(issue, self._graphs)
        return found

    def _set(self, tokens: Sequence[int]) -> None:
        """Put the rows of a step where the launches read them."""
        if len(tokens) > 1:
            self._ids[: len(tokens)].copy_(torch.tensor(tokens), non_blocking=True)
        elif tokens[0] != self._anchor:
            self._ids[:1].fill_(tokens[0])
        self._anchor = tokens[0]

    def _draw_by(self, noise: tuple[float, int] | None) -> None:
        if noise is not None and noise != self._drawn:
            self._noise.temperature.fill_(noise[0])
            self._noise.seed.fill_(noise[1])
            self._drawn = noise

    def read(self, told: Tensor) -> Tensor:
        """A copy of `told` on the host, once the device got there: the one wait of a round."""
        host = told.to("cpu", non_blocking=True)
        self._tally.wait(told.device)
        return host

    def _outcome(self, told: Tensor, m: int, width: int) -> Outcome:
        values = self.read(told).tolist()
        count = int(values[_COUNT])
        tokens = [int(v) for v in values[_COMMITTED : _COMMITTED + count + 1]]
        self._anchor = tokens[-1]
        first = _COMMITTED + m
        columns = [values[first + i * width : first + (i + 1) * width] for i in range(3)]
        return Outcome(
            tokens,
            bool(values[_FINITE]),
            tuple(int(v) for v in columns[0]),
            tuple(columns[1]),
            tuple(columns[2]),
        )
