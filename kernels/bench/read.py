"""The read bandwidth of the device at hand: what a step's floor is measured against."""

from __future__ import annotations

import statistics

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.bench.clock import elapsed_us

_PROGRAMS = 132 * 16
_BLOCK = 4096  # words a turn


def read_gb_s(memory: Tensor, repeats: int = 9) -> float:
    """Median bandwidth of reading `memory`, contiguous and many times larger than any cache."""
    words = memory.view(-1).view(torch.int32)
    turns = words.numel() // (_PROGRAMS * _BLOCK)
    sums = torch.empty(_PROGRAMS, dtype=torch.int32, device=memory.device)

    def once() -> None:
        _read[(_PROGRAMS,)](words, sums, turns, BLOCK=_BLOCK, num_warps=8)

    once()
    taken = statistics.median(elapsed_us(once) for _ in range(repeats))
    return turns * _PROGRAMS * _BLOCK * words.element_size() / taken / 1e3


@triton.jit
def _read(words, sums, turns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    program = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.int32)
    for turn in tl.range(0, turns, num_stages=4):
        total += tl.load(words + (program * turns + turn) * BLOCK + lane)
    tl.store(sums + program, tl.sum(total, 0))
