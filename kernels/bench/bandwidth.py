"""How fast the device at hand reads, by how much one launch reads: the ceiling of any kernel.

A launch of a few megabytes cannot reach what one of a gigabyte does: too little is in flight, and
starting it costs time. So a kernel is held against a plain read of as many bytes, timed the same
way: launches after one another in one graph, over data that no cache still holds.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.bench.clock import rotations, times_us

SIZES = tuple(1 << power for power in range(20, 31))  # 1 MiB to 1 GiB
LARGE = 2 << 30
_WORD = 4
_BLOCKS = (1024, 4096, 16384)  # words that one program reads; the fastest is the ceiling
_SLICE_LIMIT = 512  # different slices of a small size that one graph goes through


@triton.jit
def _sum_words(source: Any, totals: Any, BLOCK: tl.constexpr) -> None:
    program = tl.program_id(0)
    words = tl.load(source + program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK))
    tl.store(totals + program, tl.sum(words, axis=0))


def sum_words(source: Tensor, totals: Tensor, block: int) -> None:
    """Sum every `block` words of `source` [n] int32 into `totals` [n / block], wrapping around."""
    grid = (source.numel() // block,)
    _sum_words[grid](source, totals, BLOCK=block, num_warps=max(1, min(8, block // 512)))


def read_gb_s(size_bytes: int = LARGE, repeats: int = 9) -> float:
    """Bandwidth of launches that read `size_bytes` each, GB/s: the median of the best block.

    `size_bytes` is a multiple of 64 KiB.
    """
    words = size_bytes // _WORD
    count = rotations(size_bytes, least=2, most=_SLICE_LIMIT)
    source = torch.zeros(count * words, dtype=torch.int32, device="cuda")
    totals = torch.empty(words // min(_BLOCKS), dtype=torch.int32, device="cuda")
    medians = []
    for block in _BLOCKS:
        calls = [
            partial(sum_words, source[i * words : (i + 1) * words], totals, block)
            for i in range(count)
        ]
        medians.append(statistics.median(times_us(calls, repeats)))
    return size_bytes / min(medians) / 1e3


def ceilings_gb_s(sizes: Sequence[int] = SIZES, repeats: int = 9) -> dict[int, float]:
    """Read bandwidth, GB/s, by bytes of one launch."""
    return {size: read_gb_s(size, repeats) for size in sizes}
