"""One loaded model that generates: prefill, then rounds of draft, verify and commit.

The engine owns weights and configuration; every generation owns its state. It knows token ids
only: text, prompts and protocols are other modules' business.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from engine.checkpoint import load_weights
from engine.config import EngineConfig
from engine.draft import DraftHead
from engine.errors import ConfigError, ContextOverflow, NumericsError, PromptError
from engine.geometry import Geometry
from engine.model import Backbone
from engine.prefix import Passage, PrefixCache
from engine.sampling import Sampler, Sampling, TokenLogprob
from engine.state import State
from engine.step import Tables
from engine.verify import accepted, offered
from engine.weights import Weights

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Round:
    """One draft and one verify: drafts offered, drafts the target confirmed, and the time.

    `confidence` is what the head said of each offered draft.
    """

    offered: int
    accepted: int
    time_ns: int
    confidence: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Commit:
    """Tokens made final together. The first commit of a generation comes from prefill alone."""

    tokens: tuple[int, ...]
    finish: str | None  # "stop" | "length" on the last commit
    round: Round | None
    prefill_ns: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()  # one a token where sampling asks for them
    cached: int = 0  # prompt tokens that were remembered, on the first commit


@dataclass(slots=True)
class Extent:
    """How far a generation may go: to a token of `ends`, or `limit` tokens."""

    ends: frozenset[int]
    limit: int
    produced: int = 0

    @property
    def left(self) -> int:
        """Tokens that may still be produced."""
        return self.limit - self.produced

    def take(self, tokens: list[int]) -> tuple[list[int], str | None]:
        """`tokens` up to the first that ends the generation, and "stop", "length" or None."""
        stop = next((i + 1 for i, token in enumerate(tokens) if token in self.ends), None)
        tokens = tokens[: stop or len(tokens)]
        self.produced += len(tokens)
        finish = "stop" if stop else "length" if self.left <= 0 else None
        return tokens, finish


class Engine:
    """Weights and the current configuration; generations are independent of each other."""

    def __init__(
        self, geometry: Geometry, weights: Weights, config: EngineConfig, cores: int
    ) -> None:
        self.geometry = geometry
        self.weights = weights
        self.cores = cores
        self._tables: dict[int, Tables] = {}
        self._ready: dict[str, tuple[Backbone, DraftHead | None]] = {}
        self.prefixes: PrefixCache | None = None
        self.reconfigure(config)

    @classmethod
    def load(
        cls,
        checkpoint: Path,
        config: EngineConfig | None = None,
        *,
        head: Path | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Engine:
        """Read a checkpoint and maybe a separate head; raises CheckpointError, ConfigError."""
        config = config or EngineConfig()
        geometry = Geometry.load(checkpoint)
        cores = available_cores()
        config.effective(geometry, cores)
        weights = load_weights(
            checkpoint, geometry, head=head, dtype=_DTYPES[config.dtype], progress=progress
        )
        return cls(geometry, weights, config, cores)

    def reconfigure(self, config: EngineConfig) -> None:
        """Switch to another configuration without loading again; `dtype` is fixed at load."""
        effective = config.effective(self.geometry, self.cores)
        if _DTYPES[effective.dtype] != self.weights.embed.dtype:
            raise ConfigError(
                f"dtype {effective.dtype} needs a load of its own; this engine holds "
                f"{str(self.weights.embed.dtype).removeprefix('torch.')} weights."
            )
        torch.set_num_threads(effective.threads)
        key = effective.fingerprint()
        if key not in self._ready:
            self._ready[key] = self._prepare(effective)
        self.backbone, self.drafter = self._ready[key]
        self.config = self.backbone.config
        torch.set_num_threads(self.config.threads)

    def _prepare(self, config: EngineConfig) -> tuple[Backbone, DraftHead | None]:
        tables = self._tables.get(config.context)
        if tables is None:
            tables = Tables.build(self.geometry, config.context, "cpu")
            self._tables[config.context] = tables
        backbone = Backbone(self.geometry, self.weights, config, tables)
        if config.verify_rows == "together" and not rows_are_independent(backbone):
            apart = replace(config, verify_rows="apart")
            backbone = Backbone(self.geometry, self.weights, apart, tables)
        return backbone, DraftHead(backbone) if config.draft_width else None

    # ---------------------------------------------------------------- generation

    def remember(self, budget_bytes: int) -> None:
        """From now on keep beginnings of prompts, in at most so many bytes."""
        self.prefixes = PrefixCache(budget_bytes)

    def new_state(self) -> State:
        """An empty state for the current configuration."""
        return State(self.geometry, self.config)

    def generate(
        self,
        prompt: Sequence[int],
        *,
        max_new_tokens: int,
        sampling: Sampling | None = None,
        stop_ids: Collection[int] = (),
        speculative: bool = True,
    ) -> Iterator[Commit]:
        """Commit tokens after `prompt` until EOS, a stop id or the limit; closing it cancels.

        The configuration is that of the call, whatever the engine is switched to meanwhile. Without
        `speculative` its draft head rests: one token a round.

        Raises PromptError for an empty or foreign prompt, ContextOverflow for one too long,
        NumericsError when the logits stop being finite.
        """
        sampling = sampling or Sampling()
        self.check(prompt, max_new_tokens, sampling)
        drafter = self.drafter if speculative else None
        given = list(prompt)
        extent = Extent(frozenset({self.geometry.eos_token_id, *stop_ids}), max_new_tokens)
        return _rounds(
            self.backbone, drafter, given, extent, Sampler(sampling), self.passages(given, drafter)
        )

    def passages(
        self, prompt: Sequence[int], drafter: DraftHead | None
    ) -> Callable[[], Passage | None]:
        """What finds the way of `prompt` among the remembered beginnings when it is called."""
        prefixes, owner = self.prefixes, (self.config.fingerprint(), drafter is not None)
        chunk = self.config.prefill_chunk
        return lambda: None if prefixes is None else prefixes.open(owner, prompt, chunk)

    def check(self, prompt: Sequence[int], max_new_tokens: int, sampling: Sampling) -> None:
        """Raise what `generate` would."""
        self._check_prompt(prompt, max_new_tokens)
        self._check_tokens([token for token, _ in sampling.logit_bias], "logit_bias")

    def _check_prompt(self, prompt: Sequence[int], max_new_tokens: int) -> None:
        if not prompt:
            raise PromptError("The prompt is empty; it needs at least one token.")
        if max_new_tokens < 1:
            raise PromptError(f"max_new_tokens must be at least 1; got {max_new_tokens}.")
        self._check_tokens(prompt, "The prompt")
        if len(prompt) + max_new_tokens > self.config.context:
            raise ContextOverflow(len(prompt), max_new_tokens, self.config.context)

    def _check_tokens(self, tokens: Sequence[int], where: str) -> None:
        size = self.geometry.vocab_size
        stray = next((t for t in tokens if not 0 <= t < size), None)
        if stray is not None:
            raise PromptError(f"{where} holds token {stray}, outside the vocabulary of {size}.")


@torch.inference_mode()
def _rounds(
    backbone: Backbone,
    drafter: DraftHead | None,
    prompt: list[int],
    extent: Extent,
    sampler: Sampler,
    passage: Callable[[], Passage | None],
) -> Iterator[Commit]:
    state = State(backbone.geometry, backbone.config)
    started = time.perf_counter_ns()
    known = passage()
    cached = known.restore(state) if known is not None else 0
    logits = prefill(backbone, drafter, state, prompt, known)
    token = sampler.choose(finite(logits[-1:])[0], state.length)
    _, done = extent.take([token])
    elapsed = time.perf_counter_ns() - started
    yield Commit((token,), done, None, elapsed, sampler.take_logprobs(), cached)
    while done is None:
        started = time.perf_counter_ns()
        room = min(extent.left, backbone.config.context - state.length, state.span())
        tokens, sure, hits = speculate(backbone, drafter, state, sampler, token, room)
        tokens, done = extent.take(tokens)
        token = tokens[-1]
        elapsed = time.perf_counter_ns() - started
        logprobs = sampler.take_logprobs()[: len(tokens)]
        yield Commit(tuple(tokens), done, Round(len(sure), hits, elapsed, sure), logprobs=logprobs)


def prefill(
    backbone: Backbone,
    drafter: DraftHead | None,
    state: State,
    prompt: Sequence[int],
    passage: Passage | None = None,
) -> Tensor:
    """Commit what `state` does not hold of `prompt` yet, in chunks, leaving them in `passage`.

    Returns logits [1, vocab] after the last token.
    """
    logits = None
    while logits is None:
        logits = prefill_chunk(backbone, drafter, state, prompt, passage)
    return logits


def prefill_chunk(
    backbone: Backbone,
    drafter: DraftHead | None,
    state: State,
    prompt: Sequence[int],
    passage: Passage | None = None,
) -> Tensor | None:
    """Commit the next chunk of `prompt`; logits [1, vocab] if it was the last, else None."""
    ids = prompt[state.length : state.length + backbone.config.prefill_chunk]
    forward = backbone.forward(torch.tensor(ids), state)
    state.commit(len(ids))
    if drafter is not None:
        drafter.extend(state, forward.taps[: forward.count])
    if passage is not None:
        passage.note(state)
    return backbone.logits(forward, last=True) if state.length == len(prompt) else None


def speculate(
    backbone: Backbone,
    drafter: DraftHead | None,
    state: State,
    sampler: Sampler,
    token: int,
    room: int,
) -> tuple[list[int], tuple[float, ...], int]:
    """One round after `token`: the committed tokens, the confidence of each offered draft, hits.

    At most `room` tokens are verified, so a round never runs past a limit.
    """
    drafts: tuple[int, ...] = ()
    sure: tuple[float, ...] = ()
    width = min(backbone.config.draft_width, room - 1)
    if drafter is not None and width > 0:
        block = drafter.draft(state, token, width, sampler.propose)
        drafts = block.tokens[: offered(block, backbone.config)]
        sure = block.confidence[: len(drafts)]
    if backbone.config.verify_rows == "together":
        targets, taps = _verify_together(backbone, state, sampler, token, drafts)
    else:
        targets, taps = _verify_apart(backbone, state, sampler, token, drafts)
    if drafter is not None:
        drafter.extend(state, taps)
    return targets, sure, len(targets) - 1


def _verify_together(
    backbone: Backbone, state: State, sampler: Sampler, token: int, drafts: Sequence[int]
) -> tuple[list[int], Tensor]:
    """Commit the confirmed rows of one forward; the target's tokens and the rows' taps."""
    position = state.length
    forward = backbone.forward(torch.tensor([token, *drafts]), state)
    targets = confirmed(finite(backbone.logits(forward)), drafts, sampler, position + 1)
    state.commit(len(targets))
    return targets, forward.taps[: len(targets)]


def confirmed(logits: Tensor, drafts: Sequence[int], sampler: Sampler, position: int) -> list[int]:
    """The target's tokens from `position` on by `logits` [1 + drafts, vocab]: the confirmed drafts
    and the first token of its own."""
    targets: list[int] = []
    for row in logits:
        targets.append(sampler.choose(row, position + len(targets)))
        if accepted(drafts, targets) < len(targets):
            break
    return targets


def _verify_apart(
    backbone: Backbone, state: State, sampler: Sampler, token: int, drafts: Sequence[int]
) -> tuple[list[int], Tensor]:
    """The same, one forward a row, for machines whose products are not row-independent."""
    targets: list[int] = []
    taps: list[Tensor] = []
    for row in (token, *drafts):
        if targets and row != targets[-1]:
            break
        forward = backbone.forward(torch.tensor([row]), state)
        state.commit(1)
        targets.append(sampler.choose(finite(backbone.logits(forward))[0], state.length))
        taps.append(forward.taps[:1])
    return targets, torch.cat(taps)


def rows_are_independent(backbone: Backbone) -> bool:
    """Whether this machine's products give a row the same bits alone and among others.

    A lone row is padded to the row tile; the others come in every number that a round may verify.
    """
    state = State(backbone.geometry, backbone.config)
    most = max(backbone.config.row_tile, backbone.config.draft_width + 1)
    ids = (torch.arange(5 + most) * 37 + 11) % backbone.geometry.vocab_size
    with torch.inference_mode():
        backbone.forward(ids[:5], state)
        state.commit(5)
        together = []
        for count in range(2, most + 1):
            together.append(backbone.logits(backbone.forward(ids[5 : 5 + count], state)))
            state.rollback()
        for row in range(most):
            alone = backbone.logits(backbone.forward(ids[5 + row : 6 + row], state))
            state.commit(1)
            if not all(torch.equal(alone[0], t[row]) for t in together if row < t.shape[0]):
                return False
    return True


def finite(logits: Tensor) -> Tensor:
    """`logits`, or NumericsError when any is not finite."""
    if not math.isfinite(logits.sum()):
        raise NumericsError(
            "The model produced logits that are not finite; the checkpoint is suspect."
        )
    return logits


def available_cores() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
