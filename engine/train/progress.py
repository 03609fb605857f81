"""What a person sees while training: a line about every ten seconds, and the record of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

# Standard output belongs to results.
console = Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """One line, at once."""
    console.print(text, markup=False)


@dataclass(slots=True)
class Progress:
    """Collects device scalars without waiting for them and prints their means now and then."""

    name: str
    tokens_per_step: int
    every_s: float = 10.0
    unit: str = "tok"
    history: list[dict[str, float]] = field(default_factory=list)
    _sums: dict[str, Tensor] = field(default_factory=dict)
    _count: int = 0
    _since_s: float = 0.0
    _started_s: float = 0.0

    def __post_init__(self) -> None:
        self._since_s = self._started_s = time.monotonic()

    def add(self, **values: Tensor) -> None:
        """Note the scalars of one step."""
        for name, value in values.items():
            value = value.detach()
            self._sums[name] = self._sums[name] + value if name in self._sums else value.clone()
        self._count += 1

    def due(self) -> bool:
        """Whether it is time for a line."""
        return self._count > 0 and time.monotonic() - self._since_s >= self.every_s

    def line(self, step: int, fraction: float, factor: float, extra: str = "") -> None:
        """Print and record the means since the last line."""
        means = {name: float(value) / self._count for name, value in self._sums.items()}
        now = time.monotonic()
        rate = self._count * self.tokens_per_step / max(now - self._since_s, 1e-9)
        self.history.append(
            {"step": step, "fraction": round(fraction, 4), "tok_s": round(rate), **means}
        )
        shown = " ".join(f"{name} {value:.4f}" for name, value in means.items())
        say(
            f"{self.name} {now - self._started_s:6.1f}s step {step:6d} {fraction:6.1%} {shown} "
            f"lr x{factor:.3f} {rate / 1e3:.1f}k {self.unit}/s {extra}".rstrip()
        )
        self._sums.clear()
        self._count, self._since_s = 0, time.monotonic()


def memory(device: torch.device) -> dict[str, Any]:
    """Peak device memory, where there is such a thing."""
    if device.type != "cuda":
        return {}
    return {"peak_gb": round(torch.cuda.max_memory_allocated(device) / 2**30, 2)}
