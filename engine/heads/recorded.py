"""Training steps as CUDA graphs, and batches that lie ready when a step asks for them.

A step of a small head is some thousand launches of a few microseconds each, so the host is what
binds: recorded once, they are one launch. The batches of a step are read from disk meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Final

import torch
from torch import Tensor

from engine.heads.captured import Batch, Room

# Batches are as long as the next multiple of this, so that few shapes have to be recorded.
LENGTHS: Final = 256

Scalars = dict[str, Tensor]


@dataclass(slots=True)
class _Recording:
    """A shape's batch, where every step of that shape finds it, and its graph once there is one."""

    batch: Batch
    graph: torch.cuda.CUDAGraph | None = None
    scalars: Scalars | None = None


class Recorded:
    """Calls `work` on batches of one CUDA `device`: a shape's first batch as it is, then its graph.

    `work` must not wait for the device, and must leave its results where they were the last time.
    The scalars that it returns hold until the next call.
    """

    def __init__(self, work: Callable[[Batch], Scalars], device: torch.device) -> None:
        self._work, self._device = work, device
        # What runs before a recording must run where it is recorded, gradients above all.
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._found: dict[tuple[torch.Size, ...], _Recording] = {}

    def __call__(self, batch: Batch) -> Scalars:
        """The scalars of one call of `work`."""
        outside = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(outside)
        with torch.cuda.stream(self._stream):
            scalars = self._run(batch)
        outside.wait_stream(self._stream)
        return scalars

    def _run(self, batch: Batch) -> Scalars:
        shape = tuple(getattr(batch, field.name).shape for field in fields(batch))
        if shape not in self._found:
            self._found[shape] = _Recording(batch.to(self._device))
            return self._work(self._found[shape].batch)
        mine = self._found[shape]
        for field in fields(batch):
            getattr(mine.batch, field.name).copy_(getattr(batch, field.name), non_blocking=True)
        self._stream.synchronize()  # the batch's memory is soon that of another
        if mine.graph is None or mine.scalars is None:
            mine.graph = torch.cuda.CUDAGraph()
            # The thread that reads ahead pins memory, which only this thread must not do here.
            with torch.cuda.graph(
                mine.graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                mine.scalars = self._work(mine.batch)
        mine.graph.replay()
        return mine.scalars


class Ahead:
    """Batches by number from `make`, in pinned memory; the one after is made meanwhile.

    A batch holds until the next but one is asked for.
    """

    def __init__(self, make: Callable[[int, Room], Batch]) -> None:
        self._make = make
        self._rooms = Pinned(), Pinned()
        self._thread = ThreadPoolExecutor(1, "batches")
        self._next: tuple[int, Future[Batch]] | None = None

    def __call__(self, number: int) -> Batch:
        """Batch `number`."""
        at, found = self._next or (-1, None)
        if found is None or at != number:
            found = self._begun(number)
        batch = found.result()
        self._next = number + 1, self._begun(number + 1)
        return batch

    def _begun(self, number: int) -> Future[Batch]:
        return self._thread.submit(self._make, number, self._rooms[number % 2])


class Pinned:
    """Pinned memory that is taken again for the same name, shape and type: making it is slow."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, tuple[int, ...], torch.dtype], Tensor] = {}

    def __call__(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The memory of that name, shape and type."""
        key = (name, shape, dtype)
        if key not in self._held:
            self._held[key] = torch.empty(shape, dtype=dtype, pin_memory=torch.cuda.is_available())
        return self._held[key]
