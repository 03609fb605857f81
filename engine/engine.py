"""One loaded model that generates: prefill, then rounds of draft, verify and commit.

The engine owns weights and configuration; every generation owns its state. It knows token ids
only: text, prompts and protocols are other modules' business.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from engine import synthetic
from engine.backend import Backend, finite
from engine.checkpoint import load_weights
from engine.config import EngineConfig
from engine.draft import DraftHead
from engine.errors import ConfigError, ContextOverflow, PromptError
from engine.geometry import Geometry, synthetic_name
from engine.model import Backbone
from engine.prefix import Passage, PrefixCache
from engine.sampling import Sampler, Sampling, TokenLogprob
from engine.step import Tables
from engine.torch_backend import TorchBackend
from engine.weights import Weights

if TYPE_CHECKING:
    from engine.device.weights import Weights as DeviceWeights

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


class Engine:
    """Weights and the current configuration; generations are independent of each other."""

    def __init__(
        self, geometry: Geometry, weights: Weights | DeviceWeights, config: EngineConfig, cores: int
    ) -> None:
        self.geometry = geometry
        self.weights = weights
        self.cores = cores
        self._tables: dict[int, Tables] = {}
        self._ready: dict[str, Backend] = {}
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
        """Read a checkpoint and maybe a separate head, or make a `synthetic:NAME` model.

        Raises CheckpointError, ConfigError, and DeviceError where the backend cannot run here.
        """
        config = config or EngineConfig()
        geometry = Geometry.load(checkpoint)
        made_up = synthetic_name(checkpoint) is not None
        if made_up and head is not None:
            raise ConfigError("A synthetic model has no use for a draft head of its own.")
        cores = available_cores()
        effective = config.effective(geometry, cores)
        weights: Weights | DeviceWeights
        if effective.backend == "triton":
            from engine.device import requirement

            device = requirement.device()
            # Triton, from here on
            from engine.device import checkpoint as native, memory, synthetic as random

            memory.check(geometry, effective, device)
            if made_up:
                weights = random.generate(geometry, device=device, seed=synthetic.SEED)
            else:
                weights = native.load(
                    checkpoint, geometry, device=device, head=head, progress=progress
                )
        elif made_up:
            weights = synthetic.weights(geometry, _DTYPES[config.dtype])
        else:
            weights = load_weights(
                checkpoint, geometry, head=head, dtype=_DTYPES[config.dtype], progress=progress
            )
        return cls(geometry, weights, config, cores)

    def reconfigure(self, config: EngineConfig) -> None:
        """Switch to another configuration without loading again.

        `backend` is fixed at load, and so is `dtype` under the torch backend.
        """
        effective = config.effective(self.geometry, self.cores)
        self._check_weights(effective)
        torch.set_num_threads(effective.threads)
        key = effective.fingerprint()
        if key not in self._ready:
            self._ready[key] = self._prepare(effective)
        self.backend = self._ready[key]
        self.config = self.backend.config
        torch.set_num_threads(self.config.threads)

    def _check_weights(self, config: EngineConfig) -> None:
        on_host = isinstance(self.weights, Weights)
        if on_host != (config.backend == "torch"):
            raise ConfigError(
                f"backend {config.backend} needs a load of its own; this engine holds the weights "
                f"of backend {'torch' if on_host else 'triton'}."
            )
        if on_host and _DTYPES[config.dtype] != self.weights.embed.dtype:
            raise ConfigError(
                f"dtype {config.dtype} needs a load of its own; this engine holds "
                f"{str(self.weights.embed.dtype).removeprefix('torch.')} weights."
            )

    def _prepare(self, config: EngineConfig) -> Backend:
        if not isinstance(self.weights, Weights):
            from engine.device.backend import TritonBackend

            return TritonBackend(self.geometry, self.weights, config)
        tables = self._tables.get(config.context)
        if tables is None:
            tables = Tables.build(self.geometry, config.context, "cpu")
            self._tables[config.context] = tables
        return TorchBackend(self.geometry, self.weights, config, tables)

    @property
    def backbone(self) -> Backbone:
        """The torch backend's backbone."""
        assert isinstance(self.backend, TorchBackend)
        return self.backend.backbone

    @property
    def drafter(self) -> DraftHead | None:
        """The torch backend's draft head."""
        assert isinstance(self.backend, TorchBackend)
        return self.backend.drafter

    # ---------------------------------------------------------------- generation

    def remember(self, budget_bytes: int) -> None:
        """From now on keep beginnings of prompts, in at most so many bytes."""
        self.prefixes = PrefixCache(budget_bytes)

    def new_state(self) -> Any:
        """An empty state for the current configuration, of the backend's own kind."""
        return self.backend.new_state()

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
        self._check_prompt(prompt, max_new_tokens)
        self._check_tokens([token for token, _ in sampling.logit_bias], "logit_bias")
        sampler = Sampler(sampling)
        ends = {self.geometry.eos_token_id, *stop_ids}
        drafting = speculative and self.backend.drafts
        given = list(prompt)
        prefixes, owner = self.prefixes, (self.config.fingerprint(), drafting)
        chunk = self.config.prefill_chunk

        def passage() -> Passage | None:
            return None if prefixes is None else prefixes.open(owner, given, chunk)

        return rounds(self.backend, drafting, given, max_new_tokens, sampler, ends, passage)

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
def rounds(
    backend: Backend,
    drafting: bool,
    prompt: list[int],
    limit: int,
    sampler: Sampler,
    ends: set[int],
    passage: Callable[[], Passage | None] = lambda: None,
) -> Iterator[Commit]:
    """Prefill `prompt`, then round after round: `Engine.generate` for arguments already checked."""
    state = backend.new_state()
    started = time.perf_counter_ns()
    known = passage()
    cached = known.restore(state) if known is not None else 0
    logits = backend.prefill(state, prompt, known, drafting=drafting)
    token = sampler.choose(finite(logits[-1:])[0], state.length)
    done = _finish(token in ends, 1, limit)
    elapsed = time.perf_counter_ns() - started
    yield Commit((token,), done, None, elapsed, sampler.take_logprobs(), cached)
    produced = 1
    while done is None:
        started = time.perf_counter_ns()
        room = min(limit - produced, backend.config.context - state.length, state.span())
        tokens, sure, hits = backend.round(state, sampler, token, room, drafting=drafting)
        stop = next((i + 1 for i, t in enumerate(tokens) if t in ends), None)
        tokens = tokens[: stop or len(tokens)]
        produced += len(tokens)
        token = tokens[-1]
        done = _finish(stop is not None, produced, limit)
        elapsed = time.perf_counter_ns() - started
        logprobs = sampler.take_logprobs()[: len(tokens)]
        yield Commit(tuple(tokens), done, Round(len(sure), hits, elapsed, sure), logprobs=logprobs)


def available_cores() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _finish(stopped: bool, produced: int, limit: int) -> str | None:
    if stopped:
        return "stop"
    return "length" if produced >= limit else None
