"""Tokens drawn on the device by noise that depends on a seed, a position and the token alone.

So a step draws the same token at a position whatever its width, and a draft that draws with the
target's noise agrees with it more often than an independent one would.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import best
from kernels.launch import output, require
from kernels.workspace import Workspace, room

_WORD = tl.constexpr(0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class Tile:
    """The launch; `tokens`, a power of two, are a program's."""

    tokens: int = 1024
    warps: int = 4


TILE = Tile()


def pick(
    scores: Tensor,
    position: Tensor,
    seed: Tensor,
    temperature: Tensor,
    *,
    ahead: int = 1,
    out: Tensor | None = None,
    tile: Tile = TILE,
    workspace: Workspace | None = None,
) -> Tensor:
    """Tokens int64 [m] drawn from softmax(`scores` float32 [m, v] / `temperature`).

    Row r draws the token at position[0] + `ahead` + r: the best of scores / temperature + Gumbel
    noise, of equals the lowest. `position`, `seed` int64 [1], `temperature` float32 [1]; at
    temperature 0 there is no noise. Raises ValueError for operands that do not fit or an `out` that
    shares memory with one.
    """
    m, v = scores.shape
    require(scores.dtype == torch.float32, f"scores are {scores.dtype}, not float32")
    require(v > 1, f"{v} tokens are no choice")
    require(scores.stride(1) == 1, "the last axis of scores is not contiguous")
    for name, given, dtype in (
        ("position", position, torch.int64),
        ("seed", seed, torch.int64),
        ("temperature", temperature, torch.float32),
    ):
        require(
            given.shape == (1,) and given.dtype == dtype,
            f"{name}: {given.dtype} {tuple(given.shape)}, not one {dtype}",
        )
    token = output(out, (m,), torch.int64, scores, position, seed, temperature)
    if m:
        tiles = triton.cdiv(v, tile.tokens)
        meet = best.Meeting.of(tiles, 1)
        met = room(workspace, scores.device, 2 * meet.words * m, meet.arrivals * m)
        _pick[(tiles, m)](
            scores, position, seed, temperature, token, met.words, met.arrivals,
            scores.stride(0), v, ahead,
            TOKENS=tile.tokens, WORDS=meet.words, ARRIVALS=meet.arrivals, GROUPS=meet.groups,
            num_warps=tile.warps,
        )  # fmt: skip
    return token


@triton.jit(do_not_specialize=["ahead"])
def _pick(  # type: ignore[no-untyped-def]
    scores, position, seed, temperature, token, words, arrivals, stride, v, ahead,
    TOKENS: tl.constexpr, WORDS: tl.constexpr, ARRIVALS: tl.constexpr,
    GROUPS: tl.constexpr,
):  # fmt: skip
    tile, tiles, row = tl.program_id(0), tl.num_programs(0), tl.program_id(1)
    index = tile * TOKENS + tl.arange(0, TOKENS)
    there = index < v
    score = tl.load(scores + row.to(tl.int64) * stride + index, mask=there, other=0.0)
    heat = tl.load(temperature)
    if heat > 0:
        at = tl.load(position) + ahead + row
        score = score / heat + gumbel(tl.load(seed), at, tile * (TOKENS // 2), TOKENS // 2)
    last, first, _, _ = best.conclude(
        words + row * WORDS, arrivals + row * ARRIVALS, tile, tiles,
        score[:, None], index[:, None], there[:, None], GROUPS,
    )  # fmt: skip
    if last:
        tl.store(token + row + tl.arange(0, 1), best.token_of(first))


@triton.jit
def gumbel(seed, position, pair, PAIRS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Float32 noise [2 PAIRS] of the tokens from 2 `pair` on at one position.

    A token's uniform number has the 64 bits of two words of Philox, so that the rarest noise is as
    rare as it should be: tokens 2 i and 2 i + 1 share the counter (i, position's two words, 0).
    """
    counter = (pair + tl.arange(0, PAIRS)).to(tl.uint32)
    zero = counter * 0
    low = (position & _WORD).to(tl.uint32) + zero
    high = ((position >> 32) & _WORD).to(tl.uint32) + zero
    a, b, c, d = tl.philox(seed, counter, low, high, zero)
    upper, lower = tl.interleave(a, c).to(tl.float32), tl.interleave(b, d).to(tl.float32)
    uniform = upper * 2.0**-32 + (lower + 0.5) * 2.0**-64
    # -log(1 - u) by W. Kahan's quotient: 1 - u may lose u.
    rest = 1.0 - uniform
    lost = rest == 1.0
    quotient = uniform / tl.where(lost, 1.0, 1.0 - rest)
    return -tl.log(tl.where(lost, uniform, -tl.log(rest) * quotient))
