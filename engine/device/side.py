"""A second stream for launches that need not wait for those of the first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Side:
    """Forks from the current stream and joins it again; on a CPU everything is one sequence."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        self._forked = False

    @contextmanager
    def fork(self) -> Iterator[None]:
        """Inside, launches wait for what was launched so far, and for nothing after it."""
        if self._device.type != "cuda":
            yield
            return
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            yield
        self._forked = True

    def join(self) -> None:
        """Let what is launched from now on wait for all that was forked."""
        if self._forked:
            assert self._stream is not None
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
            self._forked = False
