"""Tokens drawn by noise that depends on a seed, a position and the token alone."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.oracle.best import best

_WORD = 0xFFFFFFFF


def pick(
    scores: Tensor, position: Tensor, seed: Tensor, temperature: Tensor, *, ahead: int = 1
) -> Tensor:
    """Tokens int64 [m] drawn from softmax(`scores` [m, v] / `temperature`).

    Row r draws the token at position[0] + `ahead` + r: the best of scores / temperature + Gumbel
    noise, of equals the lowest. `position`, `seed` int64 [1], `temperature` float32 [1]; at
    temperature 0 there is no noise.
    """
    if temperature[0] == 0:
        return best(scores).token
    m, v = scores.shape
    at = position[0] + ahead + torch.arange(m, device=scores.device)
    return best(scores / temperature[0] + gumbel(seed[0], at, v)).token


def gumbel(seed: Tensor, position: Tensor, count: int) -> Tensor:
    """Float64 noise [..., count] of the tokens 0 .. `count` - 1 at each `position` [...].

    A token's uniform number has the 64 bits of two words of Philox: tokens 2 i and 2 i + 1 share
    the counter (i, position's two words, 0).
    """
    pairs = torch.arange((count + 1) // 2, device=seed.device)
    zero = torch.zeros_like(pairs)
    position = position[..., None]
    low, high = (position & _WORD) + zero, (position >> 32 & _WORD) + zero
    words = philox(seed, (pairs, low, high, zero))
    upper = torch.stack((words[0], words[2]), -1).flatten(-2)[..., :count].double()
    lower = torch.stack((words[1], words[3]), -1).flatten(-2)[..., :count].double()
    uniform = upper * 2.0**-32 + (lower + 0.5) * 2.0**-64
    return -torch.log(-torch.log1p(-uniform))


def philox(seed: Tensor, counter: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Philox4x32-10 (Salmon et al., 2011): four 32-bit words in int64 of a `counter` of four."""
    c0, c1, c2, c3 = counter
    k0, k1 = seed & _WORD, seed >> 32 & _WORD
    for _ in range(10):
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57  # int64 wraps, which leaves all 64 bits right
        c0, c1, c2, c3 = (
            (b >> 32 & _WORD) ^ c1 ^ k0,
            b & _WORD,
            (a >> 32 & _WORD) ^ c3 ^ k1,
            a & _WORD,
        )
        k0, k1 = (k0 + 0x9E3779B9) & _WORD, (k1 + 0xBB67AE85) & _WORD
    return c0, c1, c2, c3
