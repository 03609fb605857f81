"""The backend of Triton kernels: every round stays on the device until its outcome is read."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from engine.backend import Verified, finite
from engine.config import EngineConfig
from engine.device.draft import DraftHead
from engine.device.launches import Tally
from engine.device.layers import Chunk, Layers
from engine.device.memory import DTYPES
from engine.device.operations import Operations
from engine.device.seat import Outcome, Seat
from engine.device.state import State, Store
from engine.device.tables import Tables
from engine.device.weights import Weights
from engine.draft import Block
from engine.errors import NumericsError
from engine.geometry import Geometry
from engine.prefix import Memory, Passage
from engine.sampling import Sampler
from engine.verify import accepted, offered

_WARM_ROWS, _WARM_START = (5, 96), 1024
_NOT_FINITE = "The model produced logits that are not finite; the checkpoint is suspect."


def layers_of(
    geometry: Geometry,
    weights: Weights,
    config: EngineConfig,
    operations: Operations | None = None,
) -> Layers:
    """The layers of a model as `config` launches them, by its kernels unless `operations` say."""
    device = weights.embed.device
    if operations is None:
        from engine.device.tiles import Tiles  # Triton, which oracles do without

        operations = Operations.kernels(device, Tiles(config, geometry))
    return Layers(
        geometry,
        weights,
        operations,
        Tables.build(geometry, config.context, device),
        dtype=DTYPES[config.dtype],
        rounds=config.numerics != "exact",
        shared_expert=config.shared_expert,
    )


@torch.inference_mode(False)  # memory that may be written in or out of that mode
def seat_of(layers: Layers, head: DraftHead, config: EngineConfig, tally: Tally) -> Seat:
    """Memory for one sequence at a time, and its launches over `layers`."""
    device, packed = layers.weights.embed.device, config.key_format == "packed"
    store = Store(layers.geometry, config.context, layers.dtype, device, packed=packed)
    graphs = config.graph == "on" and device.type == "cuda"
    return Seat(layers, head, store, tally, graphs=graphs)


class TritonBackend:
    """`engine.backend.Backend` on a GPU, or under Triton's interpreter."""

    def __init__(
        self,
        geometry: Geometry,
        weights: Weights,
        config: EngineConfig,
        operations: Operations | None = None,
    ) -> None:
        self.geometry = geometry
        self.config = config
        self.tally = Tally()
        self.device = weights.embed.device
        self.layers = layers_of(geometry, weights, config, operations)
        self.head = DraftHead(self.layers)
        self._free: list[Seat] = []
        self._warm = False
        self._seats: weakref.WeakKeyDictionary[State, Seat] = weakref.WeakKeyDictionary()
        if self.device.type == "cuda":
            from engine.device.tiles import Tiles

            with Tiles(config, geometry).answered():
                self.warm_up()

    @property
    def drafts(self) -> bool:
        """Whether rounds may draft."""
        return self.config.draft_width > 0

    # ---------------------------------------------------------------- states

    def new_state(self) -> State:
        """An empty state, in the memory of one that is gone if there is any."""
        seat = self._free.pop() if self._free else self._new_seat()
        state = State(seat.store)
        self._seats[state] = seat
        weakref.finalize(state, self._free.append, seat)
        return state

    @torch.inference_mode()
    def _new_seat(self) -> Seat:
        seat = seat_of(self.layers, self.head, self.config, self.tally)
        if self._warm:
            seat.capture(self.config.draft_width, joint=self._joint)
        return seat

    @property
    def _joint(self) -> bool:
        """Whether a round leaves nothing to the host."""
        return self.config.verify_policy == "fixed"

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Compile every kernel and capture the graphs of a first seat, so that no request waits."""
        state = self.new_state()
        _, seat = self.seat(state)
        seat.warm_up(self.config.draft_width, joint=self._joint)
        self._warm = True
        for start, rows in self._warm_chunks():
            state.length = start
            self.prefill(state, [0] * (start + rows))
        self.tally.watch()

    def _warm_chunks(self) -> Iterator[tuple[int, int]]:
        """Start and rows of chunks for which all kernels of a prefill are compiled.

        They are compiled apart for one row, for whole blocks of rows and for other numbers, and for
        every power of two of the compressed rows that there may be.
        """
        chunk, context = self.config.prefill_chunk, self.config.context
        for rows in sorted({1, chunk, *_WARM_ROWS}):
            if rows <= min(chunk, context):
                yield 0, rows
        start = _WARM_START
        while start + chunk <= context:
            for rows in sorted({min(rows, chunk) for rows in _WARM_ROWS}):
                yield start, rows
            start *= 2

    def seat(self, state: Memory) -> tuple[State, Seat]:
        """`state` as this backend made it, and where it runs."""
        assert isinstance(state, State)
        return state, self._seats[state]

    # ---------------------------------------------------------------- prefill

    @torch.inference_mode()
    def prefill(
        self,
        state: Memory,
        prompt: Sequence[int],
        passage: Passage | None = None,
        *,
        drafting: bool = True,
    ) -> Tensor:
        """See `Backend.prefill`."""
        mine, seat = self.seat(state)
        drafting = drafting and self.drafts
        left = torch.tensor(prompt[mine.length :]).to(self.device)
        x = left.new_empty(0)
        for ids in left.split(self.config.prefill_chunk):
            chunk = Chunk(mine.length, len(ids))
            x = seat.prefill(ids, chunk, drafting=drafting)
            mine.advance(len(ids), drafting=drafting)
            if passage is not None:
                passage.note(mine)
        head = self.layers.operations.lm_head.scores(x[-1:], self.layers.weights.head)
        return seat.read(head.scores)

    @torch.inference_mode()
    def states(self, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Taps [T, taps * hidden] and the output head's input [T, hidden] at every one of `ids`.

        Read as a prompt is, in chunks, and forgotten again.
        """
        state = self.new_state()
        _, seat = self.seat(state)
        taps, read = [], []
        for part in torch.tensor(list(ids)).to(self.device).split(self.config.prefill_chunk):
            ran = self.layers.forward(part, seat.store, Chunk(state.length, len(part)))
            state.advance(len(part), drafting=False)
            taps.append(ran.taps)
            read.append(ran.x)
        return torch.cat(taps), torch.cat(read)

    # ---------------------------------------------------------------- steps

    @torch.inference_mode()
    def forward(self, state: Memory, ids: Sequence[int], *, keep: int) -> Tensor:
        """See `Backend.forward`."""
        mine, seat = self.seat(state)
        scores = seat.verify(ids)
        seat.settle(len(ids), keep, drafting=False)
        mine.advance(keep, drafting=False)
        return scores

    @torch.inference_mode()
    def round(
        self, state: Memory, sampler: Sampler, token: int, room: int, *, drafting: bool = True
    ) -> Verified:
        """See `Backend.round`."""
        mine, seat = self.seat(state)
        drafting = drafting and self.drafts
        width = min(self.config.draft_width, room - 1) if drafting else 0
        simple = sampler.simple()
        if simple is None:
            return self._chosen_by_host(mine, seat, sampler, token, width, drafting=drafting)
        noise = simple if simple.temperature > 0 else None
        if width and self._joint:
            drafted = outcome = seat.round(token, width, noise)
        else:
            drafted = self._offered(seat.draft(token, width, noise)) if width else _NOTHING
            outcome = seat.confirm([token, *drafted.drafts], noise, drafting=drafting)
        if not outcome.finite:
            raise NumericsError(_NOT_FINITE)
        mine.follow(mine.length + len(outcome.tokens), drafting=drafting)
        return Verified(outcome.tokens, drafted.confidence, len(outcome.tokens) - 1)

    @torch.inference_mode()
    def confirm(self, state: Memory, token: int, drafts: Sequence[int]) -> Verified:
        """A greedy round whose `drafts` are given: what `round` does once it has drafted."""
        mine, seat = self.seat(state)
        outcome = seat.confirm([token, *drafts], None, drafting=self.drafts)
        mine.follow(mine.length + len(outcome.tokens), drafting=self.drafts)
        return Verified(outcome.tokens, (), len(outcome.tokens) - 1)

    def _offered(self, drafted: Outcome) -> Outcome:
        """The drafts that the verify policy lets the target see."""
        block = Block(drafted.drafts, drafted.margins, drafted.confidence, torch.empty(0))
        count = offered(block, self.config)
        return drafted._replace(
            drafts=drafted.drafts[:count], confidence=drafted.confidence[:count]
        )

    def _chosen_by_host(
        self, mine: State, seat: Seat, sampler: Sampler, token: int, width: int, *, drafting: bool
    ) -> Verified:
        """A round whose targets the host's sampler chooses; the drafts are greedy."""
        drafted = self._offered(seat.draft(token, width, None)) if width else _NOTHING
        logits = finite(seat.verify([token, *drafted.drafts]))
        targets: list[int] = []
        for row in logits:
            targets.append(sampler.choose(row, mine.length + 1 + len(targets)))
            if accepted(drafted.drafts, targets) < len(targets):
                break
        seat.settle(len(logits), len(targets), drafting=drafting)
        mine.advance(len(targets), drafting=drafting)
        return Verified(targets, drafted.confidence, len(targets) - 1)


_NOTHING = Outcome([], True)
