"""The best of a row of scores inside kernels, found by many programs of one launch.

A score and its token become one 64-bit key, ordered by score and then by the lower token; the
largest key of a row is the answer whatever the order in which programs find theirs.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from kernels import meeting

LOWEST = tl.constexpr(-(1 << 63))
_GROUP = tl.constexpr(64)  # programs that meet before their last one meets those of other groups
_TOKENS = tl.constexpr((1 << 32) - 1)


class Best(NamedTuple):
    """Of every row of scores."""

    token: Tensor  # int64 [m]: of equals the lowest
    margin: Tensor  # float32 [m]: the best score less the second
    finite: Tensor  # bool [m]: whether every score is a finite number


class Meeting(NamedTuple):
    """What `tiles` programs need to find the best of `rows` rows together."""

    words: int
    arrivals: int
    groups: int  # a power of two that is not under their number

    @classmethod
    def of(cls, tiles: int, rows: int) -> Meeting:
        """The need of `conclude`."""
        groups = triton.cdiv(tiles, _GROUP.value)
        return cls(3 * (tiles + groups) * rows, 1 + groups, triton.next_power_of_2(groups))


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
def conclude(  # type: ignore[no-untyped-def]
    words, arrivals, tile, tiles, scores, token, there, GROUPS: tl.constexpr
):
    """Add what `scores` [n, rows] of the tokens `there` hold, as one of `tiles` programs.

    Returns whether this is the last program, and if it is, best keys, second keys and whether all
    is finite, each [rows]. Programs meet in groups and the groups' last ones once more, so that no
    program reads much. `words` int64 and `arrivals` are as large as `Meeting` says.
    """
    rows: tl.constexpr = scores.shape[1]
    first, second = two(tl.where(there, key(scores, token), LOWEST))
    finite = tl.min(((tl.abs(scores) < float("inf")) | (there == 0)).to(tl.int64), 0)
    group = tile // _GROUP
    mates = tl.minimum(tiles - group * _GROUP, _GROUP)
    _leave(words, tile, tiles, first, second, finite)
    last = False
    if meeting.arrive(arrivals + 1 + group) == mates - 1:
        tl.store(arrivals + 1 + group, 0)
        first, second, finite = _join(words + group * _GROUP * rows, mates, tiles, rows, _GROUP)
        words += 3 * tiles * rows
        groups = tl.cdiv(tiles, _GROUP)
        _leave(words, group, groups, first, second, finite)
        last = meeting.arrive(arrivals) == groups - 1
        if last:
            tl.store(arrivals, 0)
            first, second, finite = _join(words, groups, groups, rows, GROUPS)
    return last, first, second, finite


@triton.jit
def _leave(words, place, places, first, second, finite):  # type: ignore[no-untyped-def]
    """Store entry `place` of `words` [3, places, rows]."""
    at = words + place * first.shape[0] + tl.arange(0, first.shape[0])
    tl.store(at, first)
    tl.store(at + places * first.shape[0], second)
    tl.store(at + 2 * places * first.shape[0], finite)


@triton.jit
def _join(  # type: ignore[no-untyped-def]
    words, count, places, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """What the first `count` entries of `words` [3, places, ROWS] say together."""
    place = tl.arange(0, BLOCK)[:, None]
    there = place < count
    at = words + place * ROWS + tl.arange(0, ROWS)[None, :]
    first = tl.load(at, mask=there, other=LOWEST, cache_modifier=".cg")
    second = tl.load(at + places * ROWS, mask=there, other=LOWEST, cache_modifier=".cg")
    finite = tl.load(at + 2 * places * ROWS, mask=there, other=1, cache_modifier=".cg")
    best = tl.max(first, 0)
    next_ = tl.max(tl.where(first == best[None, :], second, first), 0)
    return best, next_, tl.min(finite, 0)
