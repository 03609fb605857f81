"""The least time that a step can take: its bytes over the read bandwidth of the box."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Read bandwidth in GB/s with where it is from, or None with why it is unknown."""

    gb_s: float | None
    source: str

    def floor_ms(self, size_bytes: float) -> float | None:
        """Milliseconds that reading so many bytes takes at least."""
        return None if self.gb_s is None else size_bytes / self.gb_s / 1e6


def bandwidth(given_gb_s: float | None) -> Bandwidth:
    """What was given on the command line, else measured on the GPU, else unknown."""
    if given_gb_s is not None:
        return Bandwidth(given_gb_s, "given by --bandwidth-gb-s")
    if not torch.cuda.is_available():
        return Bandwidth(
            None, "unknown: there is no GPU to measure; --bandwidth-gb-s names another box's"
        )
    if importlib.util.find_spec("triton") is None:
        return Bandwidth(None, "unknown: measuring it needs Triton; --bandwidth-gb-s gives it")
    from kernels.bench.bandwidth import LARGE, read_gb_s

    name = torch.cuda.get_device_name()
    return Bandwidth(read_gb_s(), f"measured now: launches that read {LARGE >> 30} GiB on {name}")
