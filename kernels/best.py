"""The best of a row of scores inside kernels, found by many programs of one launch.

A score and its token become one 64-bit key, ordered by score and then by the lower token; the
largest key of a row is the answer whatever the order in which programs find theirs.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

LOWEST = tl.constexpr(-(1 << 63))
_TOKENS = tl.constexpr((1 << 32) - 1)


class Best(NamedTuple):
    """Of every row of scores."""

    token: Tensor  # int64 [m]: of equals the lowest
    margin: Tensor  # float32 [m]: the best score less the second
    finite: Tensor  # bool [m]: whether every score is a finite number


@triton.jit
def key(score, token):  # type: ignore[no-untyped-def]
    """int64 keys of float32 scores; one that is no number counts as the lowest."""
    bits = tl.where(score == score, score, float("-inf")).to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (_TOKENS - token.to(tl.int64))


@triton.jit
def token_of(found):  # type: ignore[no-untyped-def]
    """The token of a key."""
    return _TOKENS - (found & _TOKENS)


@triton.jit
def score_of(found):  # type: ignore[no-untyped-def]
    """The score of a key."""
    ordered = (found >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def two(keys):  # type: ignore[no-untyped-def]
    """The largest and the second largest of `keys` [n, rows] of each row."""
    first = tl.max(keys, 0)
    return first, tl.max(tl.where(keys == first[None, :], LOWEST, keys), 0)


@triton.jit
def leave(words, place, places, scores, token, there):  # type: ignore[no-untyped-def]
    """Store what a program found in `scores` [n, rows] of the tokens `there`, as entry `place`.

    `words` are int64 [3, places, rows]: best keys, second keys, and whether all was finite.
    """
    rows: tl.constexpr = scores.shape[1]
    first, second = two(tl.where(there, key(scores, token), LOWEST))
    finite = tl.min(((tl.abs(scores) < float("inf")) | (there == 0)).to(tl.int64), 0)
    at = words + place * rows + tl.arange(0, rows)
    tl.store(at, first)
    tl.store(at + places * rows, second)
    tl.store(at + 2 * places * rows, finite)


@triton.jit
def settle(  # type: ignore[no-untyped-def]
    words, places, ROWS: tl.constexpr, BLOCK: tl.constexpr, ROUNDS: tl.constexpr
):
    """Best keys, second keys and whether all is finite, [ROWS], of what `places` programs left.

    Reads them in ROUNDS of BLOCK.
    """
    first = tl.full((BLOCK, ROWS), LOWEST, tl.int64)
    second = first
    finite = tl.full((BLOCK, ROWS), 1, tl.int64)
    for turn in range(ROUNDS):
        place = (turn * BLOCK + tl.arange(0, BLOCK))[:, None]
        there = place < places
        at = words + place * ROWS + tl.arange(0, ROWS)[None, :]
        one = tl.load(at, mask=there, other=LOWEST, cache_modifier=".cg")
        other = tl.load(at + places * ROWS, mask=there, other=LOWEST, cache_modifier=".cg")
        good = tl.load(at + 2 * places * ROWS, mask=there, other=1, cache_modifier=".cg")
        second = tl.maximum(tl.minimum(first, one), tl.maximum(second, other))
        first = tl.maximum(first, one)
        finite = tl.minimum(finite, good)
    best = tl.max(first, 0)
    next_ = tl.max(tl.where(first == best[None, :], second, first), 0)
    return best, next_, tl.min(finite, 0)
