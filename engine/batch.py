"""Several generations that one engine advances together, a turn at a time.

A turn is at most one prefill chunk, of the generation that has waited longest for one, and then a
round for every generation past its prompt. So a long prompt delays nobody by more than a chunk,
and whoever leaves is forgotten within a turn.

The rows of all rounds share one forward where this machine's products give a row the same bits at
every number of whole tiles; elsewhere rounds follow one another. Either way each generation says
exactly what it would alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.backend import Backend, finite
from engine.config import EngineConfig
from engine.engine import Commit, Engine, Extent, Round
from engine.independence import sequences_are_independent
from engine.prefix import Memory, Passage
from engine.sampling import Sampler, Sampling, TokenLogprob
from engine.state import State
from engine.torch_backend import TorchBackend, own
from engine.verify import confirmed, offered


class Generation:
    """One generation between its turns. It holds no state before its first one."""

    def __init__(
        self,
        prompt: Sequence[int],
        sampler: Sampler,
        extent: Extent,
        passage: Callable[[], Passage | None],
    ) -> None:
        self.prompt = prompt
        self.sampler = sampler
        self.extent = extent
        self.read_at = 0  # the turn of its last prefill chunk
        self.token: int | None = None  # the newest one, which no forward has seen yet
        self.finish: str | None = None
        self._open_passage = passage
        self._passage: Passage | None = None
        self._state: Memory | None = None
        self._prefill_ns = 0
        self._cached = 0

    @property
    def state(self) -> Memory:
        """What it remembers, from its first chunk on."""
        assert self._state is not None
        return self._state

    def room(self, context: int) -> int:
        """Rows that its next round may verify."""
        return min(self.extent.left, context - self.state.length, self.state.span())

    def read(self, backend: Backend) -> Commit | None:
        """Prefill the next chunk; the first token once the prompt is read."""
        started = time.perf_counter_ns()
        if self._state is None:
            self._state = backend.new_state()
            self._passage = self._open_passage()
            self._cached = self._passage.restore(self._state) if self._passage else 0
        stop = self._state.length + backend.config.prefill_chunk
        logits = backend.prefill(
            self._state, self.prompt[:stop], self._passage, drafting=backend.drafts
        )
        token = None
        if stop >= len(self.prompt):
            token = self.sampler.choose(finite(logits)[0], self._state.length)
        self._prefill_ns += time.perf_counter_ns() - started
        if token is None:
            return None
        self._passage = None
        tokens, logprobs = self._take([token])
        return Commit(tokens, self.finish, None, self._prefill_ns, logprobs, self._cached)

    def commit(self, tokens: list[int], sure: tuple[float, ...], started_ns: int) -> Commit:
        """The commit of a round that brought `tokens` after drafts with the confidences `sure`."""
        hits = len(tokens) - 1
        final, logprobs = self._take(tokens)
        round_ = Round(len(sure), hits, time.perf_counter_ns() - started_ns, sure)
        return Commit(final, self.finish, round_, logprobs=logprobs)

    def _take(self, tokens: list[int]) -> tuple[tuple[int, ...], tuple[TokenLogprob, ...]]:
        kept, self.finish = self.extent.take(tokens)
        self.token = kept[-1]
        return tuple(kept), self.sampler.take_logprobs()[: len(kept)]


Outcome = tuple[Generation, Commit | Exception]


@dataclass(frozen=True, slots=True)
class _Offer:
    """What a generation puts before the target in a round."""

    drafts: tuple[int, ...] = ()
    sure: tuple[float, ...] = ()  # the head's confidence in each


class Batch:
    """Advances generations on one engine, of which up to `capacity` share their rounds.

    The configuration is that which the engine has when the batch is made.
    """

    def __init__(self, engine: Engine, capacity: int) -> None:
        self._engine = engine
        self._backend = engine.backend
        self._turn = 0
        self.capacity = capacity
        self._sharing = self._shared()

    @property
    def shares(self) -> bool:
        """Whether rounds share one forward."""
        return self._sharing is not None

    def _shared(self) -> _Sharing | None:
        """How rounds share a forward; None where they cannot, or not without changing bits."""
        backend, config = self._backend, self._backend.config
        if not isinstance(backend, TorchBackend) or config.compile != "off":
            return None
        if config.verify_rows != "together" or config.draft_tree or config.acceptance != "exact":
            return None
        independent = sequences_are_independent(backend.backbone, self.capacity)
        return _Sharing(backend) if independent else None

    @property
    def config(self) -> EngineConfig:
        """What the engine does."""
        return self._backend.config

    def switched(self, config: EngineConfig) -> Batch:
        """The same engine under another configuration; none of this one's may advance after."""
        self._engine.reconfigure(config)
        return Batch(self._engine, self.capacity)

    def check(self, prompt: Sequence[int], max_new_tokens: int, sampling: Sampling) -> None:
        """Raise what `begin` would."""
        self._engine.check(prompt, max_new_tokens, sampling)

    def begin(
        self,
        prompt: Sequence[int],
        *,
        max_new_tokens: int,
        sampling: Sampling | None = None,
        stop_ids: Collection[int] = (),
    ) -> Generation:
        """A generation that `advance` can take up; checks and raises as `Engine.generate` does."""
        sampling, given = sampling or Sampling(), list(prompt)
        self._engine.check(given, max_new_tokens, sampling)
        ends = frozenset({self._engine.geometry.eos_token_id, *stop_ids})
        passage = self._engine.passages(given, drafting=self._backend.drafts)
        return Generation(given, Sampler(sampling), Extent(ends, max_new_tokens), passage)

    @torch.inference_mode()
    def advance(self, generations: Sequence[Generation]) -> list[Outcome]:
        """One turn for unfinished `generations`: what each committed, or why it failed.

        A failure belongs to one of them, which must not be advanced again. An exception is a fault
        of the engine, after which none may be.
        """
        self._turn += 1
        reading = [g for g in generations if g.token is None]
        deciding = [g for g in generations if g.token is not None]
        outcomes = self._read(min(reading, key=lambda g: g.read_at)) if reading else []
        if self._sharing is not None and len(deciding) > 1:
            return outcomes + self._sharing.rounds(deciding)
        return outcomes + [self._round(generation) for generation in deciding]

    def _read(self, generation: Generation) -> list[Outcome]:
        generation.read_at = self._turn
        try:
            commit = generation.read(self._backend)
        except Exception as error:
            if is_fault(error):
                raise
            return [(generation, error)]
        return [] if commit is None else [(generation, commit)]

    def _round(self, g: Generation) -> Outcome:
        """A round of one generation, by itself."""
        started = time.perf_counter_ns()
        assert g.token is not None
        room = g.room(self._backend.config.context)
        try:
            found = self._backend.round(
                g.state, g.sampler, g.token, room, drafting=self._backend.drafts
            )
            return g, g.commit(found.tokens, found.confidence, started)
        except Exception as error:
            if is_fault(error):
                raise
            return g, error


def is_fault(error: Exception) -> bool:
    """Whether the engine itself is broken, and not what one generation was asked for.

    What a device or its memory fails at comes out of PyTorch as a RuntimeError, whoever's turn it
    was, and comes again for everybody else: weights that are gone, a device that is lost.
    """
    return isinstance(error, RuntimeError | MemoryError)


class _Sharing:
    """Rounds of several generations in one forward of the torch backend."""

    def __init__(self, backend: TorchBackend) -> None:
        self._backbone, self._drafter = backend.backbone, backend.drafter

    def rounds(self, generations: Sequence[Generation]) -> list[Outcome]:
        """A round of several generations in one forward."""
        started = time.perf_counter_ns()
        offers, outcomes = self._offers(generations)
        if not offers:
            return outcomes
        work = [(torch.tensor([g.token, *offer.drafts]), own(g.state)) for g, offer in offers]
        forward, joint = self._backbone.forward_together(work)
        logits = self._backbone.logits(forward)
        taps: list[tuple[State, Tensor]] = []
        brought: list[tuple[Generation, _Offer, list[int]]] = []
        for (g, offer), (_, state), rows in zip(offers, work, joint.rows, strict=True):
            try:
                position = state.length + 1
                tokens = confirmed(finite(logits[rows]), offer.drafts, g.sampler, position)
            except Exception as error:
                if is_fault(error):
                    raise
                outcomes.append((g, error))
                continue
            state.commit(len(tokens))
            taps.append((state, forward.taps[rows][: len(tokens)]))
            brought.append((g, offer, tokens))
        if self._drafter is not None and taps:
            self._drafter.extend_together(taps)
        return outcomes + [(g, g.commit(t, offer.sure, started)) for g, offer, t in brought]

    def _offers(
        self, generations: Sequence[Generation]
    ) -> tuple[list[tuple[Generation, _Offer]], list[Outcome]]:
        """What each generation offers, drafted together; and those that failed meanwhile."""
        config = self._backbone.config
        rooms = [g.room(config.context) for g in generations]
        widths = [min(config.draft_width, room - 1) for room in rooms]
        if self._drafter is None or max(widths) < 1:
            return [(g, _Offer()) for g in generations], []
        picks = [_Guarded(g) for g in generations]
        blocks = self._drafter.draft_together(
            [own(g.state) for g in generations], [pick.anchor for pick in picks], max(widths), picks
        )
        offers: list[tuple[Generation, _Offer]] = []
        failed: list[Outcome] = []
        for g, pick, block, width in zip(generations, picks, blocks, widths, strict=True):
            if pick.error is not None:
                failed.append((g, pick.error))
                continue
            count = min(offered(block, config), width)
            offers.append((g, _Offer(block.tokens[:count], block.confidence[:count])))
        return offers, failed


class _Guarded:
    """Proposes drafts for one generation; its error must not stop those that draft beside it."""

    def __init__(self, generation: Generation) -> None:
        assert generation.token is not None
        self.anchor = generation.token
        self.error: Exception | None = None
        self._propose = generation.sampler.propose

    def __call__(self, logits: Tensor, position: int) -> int:
        """The proposed token, or any at all after an error."""
        if self.error is None:
            try:
                return self._propose(logits, position)
            except Exception as error:
                self.error = error
        return self.anchor
