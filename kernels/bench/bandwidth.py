"""How fast the device at hand reads, by how much one launch reads: the ceiling of any kernel.

A launch of a few megabytes cannot reach what one of a gigabyte does: too little is in flight, and
starting it costs time. So a kernel is held against a plain read of as many bytes, timed the same
way: launches after one another in one graph, over data that no cache still holds.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.bench.clock import rotations, times_us

SIZES = tuple(1 << power for power in range(20, 31))  # 1 MiB to 1 GiB
LARGE = 2 << 30
_WORD = 4
_BLOCKS = (1024, 4096, 16384)  # words that one program reads; the fastest is the ceiling
_RUNS, _RUN_BLOCK = 2048, 4096  # programs that loop, and words that one reads a turn
_SLICE_LIMIT = 512  # different slices of a small size that one graph goes through


@triton.jit
def _sum_words(source, totals, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    program = tl.program_id(0)
    words = tl.load(source + program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK))
    tl.store(totals + program, tl.sum(words, axis=0))


@triton.jit
def _sum_runs(  # type: ignore[no-untyped-def]
    source, totals, TURNS: tl.constexpr, BLOCK: tl.constexpr
):
    program = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.int32)
    for turn in tl.range(0, TURNS, num_stages=4):
        total += tl.load(source + (program * TURNS + turn) * BLOCK + lane)
    tl.store(totals + program, tl.sum(total, axis=0))


def sum_words(source: Tensor, totals: Tensor, block: int) -> None:
    """Sum every `block` words of `source` [n] int32 into `totals`, a program each."""
    grid = (source.numel() // block,)
    _sum_words[grid](source, totals, BLOCK=block, num_warps=max(1, min(8, block // 512)))


def sum_runs(source: Tensor, totals: Tensor, programs: int) -> None:
    """Sum `source` [n] int32 in `programs` runs of whole blocks, a program that loops each."""
    turns = source.numel() // (programs * _RUN_BLOCK)
    _sum_runs[(programs,)](source, totals, TURNS=turns, BLOCK=_RUN_BLOCK, num_warps=8)


def read_gb_s(size_bytes: int = LARGE, repeats: int = 9) -> float:
    """Bandwidth of launches that read `size_bytes` each, GB/s: the median of the best form.

    `size_bytes` is a power of two of at least 64 KiB.
    """
    words = size_bytes // _WORD
    count = rotations(size_bytes, least=2, most=_SLICE_LIMIT)
    source = torch.zeros(count * words, dtype=torch.int32, device="cuda")
    totals = torch.empty(words // min(_BLOCKS), dtype=torch.int32, device="cuda")
    slices = [source[i * words : (i + 1) * words] for i in range(count)]
    forms = [[partial(sum_words, x, totals, block) for x in slices] for block in _BLOCKS]
    if words >= _RUNS * _RUN_BLOCK:
        forms.append([partial(sum_runs, x, totals, _RUNS) for x in slices])
    best = min(statistics.median(times_us(calls, repeats)) for calls in forms)
    return size_bytes / best / 1e3


def ceilings_gb_s(sizes: Sequence[int] = SIZES, repeats: int = 9) -> dict[int, float]:
    """Read bandwidth, GB/s, by bytes of one launch."""
    return {size: read_gb_s(size, repeats) for size in sizes}
