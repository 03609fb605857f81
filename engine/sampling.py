"""Choosing a token from logits, by noise that depends on the seed and the position alone.

A sampled token is the argmax of the filtered log-probabilities plus Gumbel noise, which draws
exactly from them. The noise is keyed by position, so a speculative run and a plain one with the
same seed make the same choice at every position: speculation accepts a draft when it equals that
choice, and is exact whatever decided how many drafts to offer. Drafts use the same noise, which
makes them agree more often than independent draws would.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from engine.errors import ConfigError


class Constraint(Protocol):
    """What a reply may be, token by token."""

    def mask(self, logits: Tensor) -> Tensor:
        """`logits` [vocab] with -inf wherever the next token may not be."""

    def advance(self, token: int) -> None:
        """Take up the chosen token."""

    def fork(self) -> Constraint:
        """One that goes its own way from here."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a target token is chosen; temperature 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0  # 0 keeps all
    min_p: float = 0.0
    seed: int | None = None
    frequency_penalty: float = 0.0  # taken from a token's logit once for each time it was chosen
    presence_penalty: float = 0.0  # and once if it was chosen at all
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token, added to its logit)
    logprobs: int | None = None  # alternatives to report with every token; None reports nothing
    constrain: Callable[[], Constraint] | None = None  # a fresh one for every generation

    def __post_init__(self) -> None:
        checks = [
            (math.isfinite(self.temperature) and self.temperature >= 0, "temperature", "0 or more"),
            (0 < self.top_p <= 1, "top_p", "above 0 and at most 1"),
            (self.top_k >= 0, "top_k", "0 (off) or more"),
            (0 <= self.min_p <= 1, "min_p", "from 0 to 1"),
            (abs(self.frequency_penalty) <= 2, "frequency_penalty", "from -2 to 2"),
            (abs(self.presence_penalty) <= 2, "presence_penalty", "from -2 to 2"),
            (self.logprobs is None or self.logprobs >= 0, "logprobs", "0 or more"),
        ]
        for good, name, rule in checks:
            if not good:
                raise ConfigError(f"{name} must be {rule}; got {getattr(self, name)!r}.")


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A chosen token under the target's own distribution, before any filter, penalty or bias."""

    token: int
    logprob: float  # natural logarithm
    top: tuple[tuple[int, float], ...]  # the likeliest tokens and theirs, best first


class Simple(NamedTuple):
    """A choice by temperature and noise alone; temperature 0 is greedy."""

    temperature: float
    seed: int


class Sampler:
    """Chooses tokens for one request; greedy when the temperature is 0.

    What `choose` returns counts as said: call it once a position, in order, and only where every
    token before is final.
    """

    def __init__(self, sampling: Sampling) -> None:
        self._s = sampling
        self._seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        self._generator = torch.Generator()
        self._penalises = bool(sampling.frequency_penalty or sampling.presence_penalty)
        self._constraint = sampling.constrain() if sampling.constrain else None
        self._ahead: Constraint | None = None  # the same after the drafts proposed so far
        self._said: Counter[int] = Counter()
        self._told: list[TokenLogprob] = []

    def choose(self, logits: Tensor, position: int) -> int:
        """Token for `position` from target `logits` [vocab]."""
        scores = self._adjusted(logits)
        if self._constraint is not None:
            scores = self._constraint.mask(scores)
        token = self._pick(scores, position)
        if self._constraint is not None:
            self._constraint.advance(token)
            self._ahead = None
        if self._penalises:
            self._said[token] += 1
        if self._s.logprobs is not None:
            self._told.append(told(logits, token, self._s.logprobs))
        return token

    def propose(self, logits: Tensor, position: int) -> int:
        """Token for `position` from draft `logits` [vocab], with the target's noise.

        The drafts of a round are proposed in order, each after those before it.
        """
        scores = self._adjusted(logits)
        if self._constraint is None:
            return self._pick(scores, position)
        self._ahead = self._ahead or self._constraint.fork()
        token = self._pick(self._ahead.mask(scores), position)
        self._ahead.advance(token)
        return token

    def take_logprobs(self) -> tuple[TokenLogprob, ...]:
        """Those of the tokens chosen since the last call; none unless they were asked for."""
        taken, self._told = tuple(self._told), []
        return taken

    def simple(self) -> Simple | None:
        """How tokens are drawn, where nothing but temperature and seed takes part in it."""
        s = self._s
        filters = s.top_p < 1 or s.top_k > 0 or s.min_p > 0
        told = s.logprobs is not None
        if filters or told or self._penalises or s.logit_bias or self._constraint is not None:
            return None
        return Simple(s.temperature, self._seed)

    def _pick(self, scores: Tensor, position: int) -> int:
        if self._s.temperature == 0:
            return int(scores.argmax())
        return self._argmax(filtered(scores, self._s), position)

    def _adjusted(self, logits: Tensor) -> Tensor:
        """`logits` after bias and penalties: the same tensor where there are none."""
        if not (self._s.logit_bias or self._said):
            return logits
        scores = logits.clone()
        for token, bias in self._s.logit_bias:
            scores[token] += bias
        for token, count in self._said.items():
            scores[token] -= count * self._s.frequency_penalty + self._s.presence_penalty
        return scores

    def _argmax(self, log_probabilities: Tensor, position: int) -> int:
        self._generator.manual_seed(_noise_key(self._seed, position))
        uniform = torch.rand(
            log_probabilities.shape, generator=self._generator, dtype=torch.float64
        )
        gumbel = -torch.log(-torch.log(uniform.clamp_min(torch.finfo(torch.float64).tiny)))
        return int((log_probabilities.double() + gumbel).argmax())


def told(logits: Tensor, token: int, alternatives: int) -> TokenLogprob:
    """The log-probability of `token` under `logits` [vocab], beside the likeliest ones."""
    logp = torch.log_softmax(logits.double(), -1)
    best = logp.topk(min(alternatives, logp.numel()))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return TokenLogprob(token, float(logp[token]), tuple(pairs))


def _noise_key(seed: int, position: int) -> int:
    """Generator seed of one position: a hash, since the generator takes no more than 32 bits."""
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


def filtered(logits: Tensor, sampling: Sampling) -> Tensor:
    """Log-probabilities [vocab] after temperature, top-k, top-p and min-p; -inf where excluded.

    The filters apply in that order to the renormalised rest; the likeliest token always stays.
    """
    logp = torch.log_softmax(logits.double() / sampling.temperature, -1)
    if 0 < sampling.top_k < logp.numel():
        kth = logp.topk(sampling.top_k).values[-1]
        logp = torch.log_softmax(logp.masked_fill(logp < kth, -math.inf), -1)
    if sampling.top_p < 1:
        ordered, order = logp.sort(descending=True)
        before = ordered.exp().cumsum(-1) - ordered.exp()
        dropped = torch.zeros_like(logp, dtype=torch.bool)
        dropped[order] = before >= sampling.top_p
        logp = torch.log_softmax(logp.masked_fill(dropped, -math.inf), -1)
    if sampling.min_p > 0:
        floor = logp.max() + math.log(sampling.min_p)
        logp = logp.masked_fill(logp < floor, -math.inf)
    return torch.log_softmax(logp, -1)
