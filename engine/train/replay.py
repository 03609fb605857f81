"""A training step captured as a CUDA graph: replaying it costs the host one call.

Every distinct phase of the training is its own graph over one memory pool. The first steps of a
phase run as usual on the capturing stream, which is the warm-up that capture asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from engine.train.data import Batch
from engine.train.progress import say

Phase = tuple[bool, bool]
_WARM_STEPS = 3


@dataclass(slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    scalars: dict[str, Tensor]


class Replays:
    """Runs `update(batch, *phase)`; by replay once a phase is warm, unless capture fails."""

    def __init__(self, update: Callable[..., dict[str, Tensor]]) -> None:
        self._update = update
        self._stream = torch.cuda.Stream()
        self._pool = torch.cuda.graph_pool_handle()
        self._batch: Batch | None = None
        self._warm: dict[Phase, int] = {}
        self._captured: dict[Phase, _Captured] = {}
        self._broken = False

    def run(self, batch: Batch, phase: Phase) -> dict[str, Tensor]:
        """One step; its scalars."""
        held = self._hold(batch)
        if phase in self._captured:
            captured = self._captured[phase]
            captured.graph.replay()
            return captured.scalars
        if self._broken or self._warm.get(phase, 0) < _WARM_STEPS:
            self._warm[phase] = self._warm.get(phase, 0) + 1
            return self._aside(held, phase)
        try:
            self._captured[phase] = self._capture(held, phase)
        except RuntimeError as error:
            self._broken = True
            say(f"capture failed, going on without: {str(error)[:1000]}")
            torch.cuda.synchronize()
            return self._aside(held, phase)
        return self.run(batch, phase)

    def _hold(self, batch: Batch) -> Batch:
        """The fixed tensors that captured steps read, filled with `batch`."""
        if self._batch is None:
            self._batch = Batch(*(getattr(batch, f.name).clone() for f in fields(Batch)))
        for field in fields(Batch):
            getattr(self._batch, field.name).copy_(getattr(batch, field.name))
        return self._batch

    def _aside(self, batch: Batch, phase: Phase) -> dict[str, Tensor]:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            scalars = self._update(batch, *phase)
        torch.cuda.current_stream().wait_stream(self._stream)
        return scalars

    def _capture(self, batch: Batch, phase: Phase) -> _Captured:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            scalars = self._update(batch, *phase)
        return _Captured(graph, {name: value.detach() for name, value in scalars.items()})
