"""What a plain read reaches on this device, by how much one launch reads."""

from __future__ import annotations

import bisect
import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

_CPU_SIZES = tuple(1 << power for power in range(20, 28))  # 1 MiB to 128 MiB
_CPU_BYTES = 256 << 20  # different data that is gone through, so that no cache holds all of it


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Read bandwidth, GB/s, at some working sets; between two of them by the logarithm."""

    points: tuple[tuple[int, float], ...]  # (bytes of a launch, GB/s), by bytes
    source: str

    @classmethod
    def of(cls, measured: Mapping[int, float], source: str) -> Ceiling:
        """From bandwidths by bytes; at least one."""
        return cls(tuple(sorted(measured.items())), source)

    def gb_s(self, launch_bytes: float) -> float:
        """The ceiling of a launch that reads so many bytes.

        A launch smaller than any that was measured takes as long as the smallest, so its ceiling
        falls with its bytes.
        """
        sizes = [size for size, _ in self.points]
        place = bisect.bisect_right(sizes, launch_bytes)
        if place == 0:
            size, rate = self.points[0]
            return rate * launch_bytes / size
        if place == len(sizes):
            return self.points[-1][1]
        (low, slow), (high, fast) = self.points[place - 1 : place + 1]
        share = math.log(launch_bytes / low) / math.log(high / low)
        return slow + (fast - slow) * share


def measured(device: str, repeats: int = 7) -> Ceiling:
    """Measure the device of this process now: `cuda` by a kernel that reads, `cpu` by a sum."""
    if device == "cuda":
        from kernels.bench.bandwidth import ceilings_gb_s

        name = torch.cuda.get_device_name()
        return Ceiling.of(ceilings_gb_s(repeats=repeats), f"a plain read on {name}, same call")
    source = torch.ones(_CPU_BYTES // 4)
    rates = {size: _cpu_gb_s(source.view(-1, size // 4), repeats) for size in _CPU_SIZES}
    threads = torch.get_num_threads()
    return Ceiling.of(rates, f"a float32 sum on {threads} thread(s), same call")


def _cpu_gb_s(rows: torch.Tensor, repeats: int) -> float:
    """GB/s at which [launches, words] float32 is read, a row a launch."""
    times_ns = []
    for _ in range(repeats):
        started = time.perf_counter_ns()
        for row in rows:
            row.sum()
        times_ns.append(time.perf_counter_ns() - started)
    return rows.numel() * 4 / statistics.median(times_ns)
