"""Where captured states come from: one forward over a whole sequence, proved to repeat itself.

Both sources are the engine's own prefill, on the processor and on a GPU. A forward that gives other
bits the second time is refused before anything is captured with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import NumericsError
from engine.geometry import Geometry
from engine.norm import normalise
from engine.state import State

if TYPE_CHECKING:
    from engine.device.backend import TritonBackend

_CHUNK = 2048  # tokens a forward of a GPU takes at least, where a sequence has as many


class States(NamedTuple):
    """What the backbone holds at each of T positions."""

    taps: Tensor  # [T, taps * hidden] of the target layers, streams averaged
    hidden: Tensor  # [T, hidden]: the input of the LM head


class Source(Protocol):
    """A forward whose states may be captured."""

    name: str
    geometry: Geometry

    def run(self, ids: Sequence[int]) -> States:
        """The states at every position of `ids`, float32 on the host."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Next-token logits [T, vocab] of `hidden` [T, hidden]."""


class EngineSource:
    """The engine's plain backend: chunks of prefill, state and all."""

    name = "engine"

    def __init__(self, checkpoint: Path, config: EngineConfig) -> None:
        self._engine = Engine.load(checkpoint, config)
        self.geometry = self._engine.geometry

    @torch.inference_mode()
    def run(self, ids: Sequence[int]) -> States:
        """See `Source.run`."""
        backbone, config = self._engine.backbone, self._engine.config
        state = State(self.geometry, config)
        w, eps = backbone.weights, self.geometry.rms_norm_eps
        taps, hidden = [], []
        for chunk in torch.tensor(list(ids)).split(config.prefill_chunk):
            forward = backbone.forward(chunk, state)
            state.commit(chunk.numel())
            mixed = backbone.residual.collapse(forward.streams, w.hc_head)
            taps.append(forward.taps[: forward.count])
            hidden.append(normalise(mixed, w.norm, eps)[: forward.count])
        return States(torch.cat(taps).float(), torch.cat(hidden).float())

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """See `Source.logits`."""
        head = self._engine.backbone.weights.head
        return linear(hidden.to(head.dtype), head).float()


class DeviceSource:
    """The engine's backend for a GPU: chunks of prefill, as prompts are read, but long ones.

    What the host has to launch for a chunk does not depend on its length.
    """

    name = "device"

    def __init__(self, backend: TritonBackend) -> None:
        self.geometry, self._backend = backend.geometry, backend

    @classmethod
    def load(cls, checkpoint: Path, config: EngineConfig) -> DeviceSource:
        """Of a checkpoint, which drafts nothing meanwhile."""
        from engine.device.backend import TritonBackend  # and Triton with it

        chunk = max(config.prefill_chunk, _CHUNK)
        asked = replace(config, backend="triton", draft_width=0, prefill_chunk=chunk)
        engine = Engine.load(checkpoint, asked)
        assert isinstance(engine.backend, TritonBackend)
        return cls(engine.backend)

    def run(self, ids: Sequence[int]) -> States:
        """See `Source.run`."""
        taps, hidden = self._backend.states(ids)
        return States(taps.float().cpu(), hidden.float().cpu())

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """See `Source.logits`."""
        head = self._backend.layers.weights.head
        return linear(hidden.to(head.device, head.dtype), head).float().cpu()


def prove_deterministic(source: Source, context: int) -> dict[int, str]:
    """Run the same ids twice at several lengths; NumericsError names a length whose bits differ.

    Another sequence runs in between, so that what one leaves in memory cannot pass for determinism.
    Returns the hash of the states by length.
    """
    g = source.geometry
    window = g.sliding_window
    wanted = (5, window - 1, window, window + 1, 2 * window + 3, 4 * window + 1, 8 * window)
    lengths = sorted({min(length, context) for length in wanted if length > 1})
    proved: dict[int, str] = {}
    for length in lengths:
        first, other = _some_ids(g, length, 1), _some_ids(g, length, 2)
        before = digest(source.run(first))
        source.run(other)
        if digest(source.run(first)) != before:
            raise NumericsError(
                f"The forward '{source.name}' gives other bits the second time at {length} tokens; "
                "nothing captured with it could be trusted."
            )
        proved[length] = before
    return proved


def digest(states: States) -> str:
    """sha256 over the states' bytes."""
    found = hashlib.sha256()
    for part in states:
        found.update(part.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _some_ids(g: Geometry, length: int, seed: int) -> list[int]:
    random = torch.Generator().manual_seed(seed)
    drawn: list[int] = torch.randint(2, g.vocab_size, (length,), generator=random).tolist()
    return [g.bos_token_id, *drawn[1:]]
