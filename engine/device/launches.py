"""Sequences of launches, issued one by one or replayed as a CUDA graph, and what they cost a host.

A graph fixes addresses and shapes, never positions or tokens: those are read on the device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

_Left = TypeVar("_Left")


@dataclass(slots=True)
class Tally:
    """What the host has waited for and compiled so far."""

    syncs: int = 0
    compilations: int = 0

    def wait(self, device: torch.device) -> None:
        """Wait for all that was launched."""
        self.syncs += 1
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()

    def watch(self) -> None:
        """Count every kernel that Triton compiles from now on, in this process."""
        import triton

        def compiled(**_: Any) -> None:
            self.compilations += 1

        triton.knobs.runtime.jit_post_compile_hook = compiled


class Launches(Generic[_Left]):
    """Launches that leave tensors: the same ones every time, with new content."""

    def __init__(self, issue: Callable[[], _Left], graphs: Graphs | None) -> None:
        self._issue = issue
        self._graph: torch.cuda.CUDAGraph | None = None
        self._left: _Left
        if graphs is not None:
            self._graph = torch.cuda.CUDAGraph(keep_graph=True)
            with torch.cuda.graph(self._graph, pool=graphs.pool, stream=graphs.stream):
                self._left = issue()
            self._graph.instantiate()

    def __call__(self) -> _Left:
        """Launch them all; what they leave holds once the device gets there."""
        if self._graph is None:
            return self._issue()
        self._graph.replay()
        return self._left

    def nodes(self) -> int | None:
        """Nodes of the graph, if there is one."""
        return None if self._graph is None else _nodes(self._graph)


class Graphs:
    """Memory and stream that the graphs of one sequence share: they never run at once."""

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream()


def _nodes(graph: torch.cuda.CUDAGraph) -> int:
    """Nodes of a captured graph, asked of the driver."""
    count = ctypes.c_size_t()
    driver = ctypes.CDLL("libcuda.so.1")
    handle = ctypes.c_void_p(graph.raw_cuda_graph())
    status = driver.cuGraphGetNodes(handle, None, ctypes.byref(count))
    if status:
        raise RuntimeError(f"cuGraphGetNodes failed with status {status}.")
    return count.value
