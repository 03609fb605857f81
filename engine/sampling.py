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
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a target token is chosen; temperature 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0  # 0 keeps all
    min_p: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        checks = [
            (math.isfinite(self.temperature) and self.temperature >= 0, "temperature", "0 or more"),
            (0 < self.top_p <= 1, "top_p", "above 0 and at most 1"),
            (self.top_k >= 0, "top_k", "0 (off) or more"),
            (0 <= self.min_p <= 1, "min_p", "from 0 to 1"),
        ]
        for good, name, rule in checks:
            if not good:
                raise ConfigError(f"{name} must be {rule}; got {getattr(self, name)!r}.")


class Sampler:
    """Chooses tokens for one request; greedy when the temperature is 0."""

    def __init__(self, sampling: Sampling) -> None:
        self._s = sampling
        self._seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        self._generator = torch.Generator()

    def choose(self, logits: Tensor, position: int) -> int:
        """Token for `position` from target `logits` [vocab]."""
        if self._s.temperature == 0:
            return int(logits.argmax())
        return self._argmax(filtered(logits, self._s), position)

    def propose(self, logits: Tensor, position: int) -> int:
        """Token for `position` from draft `logits` [vocab], with the target's noise."""
        if self._s.temperature == 0:
            return int(logits.argmax())
        return self._argmax(filtered(logits, self._s), position)

    def _argmax(self, log_probabilities: Tensor, position: int) -> int:
        self._generator.manual_seed(_noise_key(self._seed, position))
        uniform = torch.rand(
            log_probabilities.shape, generator=self._generator, dtype=torch.float64
        )
        gumbel = -torch.log(-torch.log(uniform.clamp_min(torch.finfo(torch.float64).tiny)))
        return int((log_probabilities.double() + gumbel).argmax())


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
