"""Times of a sequence of launches as one CUDA graph, and the bandwidth of the device at hand."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch

# Enough different data that nothing is found in a cache: several times the largest L2 in use.
ROTATION_BYTES = 320 << 20
MOST = 64  # different operands of one graph
_COPY_BYTES = 2 << 30


def rotations(operand_bytes: float, least: int = 4, most: int = MOST) -> int:
    """How many different operands one graph goes through."""
    return int(min(max(-(-ROTATION_BYTES // max(operand_bytes, 1)), least), most))


def times_us(calls: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Microseconds of one of `calls`: each repeat is one replay of a graph of all of them."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:  # compiles, and allocates what the library allocates once
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call() for call in calls]
    graph.replay()
    found = [elapsed_us(graph.replay) / len(calls) for _ in range(repeats)]
    del kept
    return found


def copy_gb_s(repeats: int = 9) -> float:
    """Bandwidth of a large copy, bytes read and bytes written together."""
    source = torch.zeros(_COPY_BYTES // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    taken = statistics.median(elapsed_us(lambda: target.copy_(source)) for _ in range(repeats))
    return _COPY_BYTES / taken / 1e3


def elapsed_us(call: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3
