"""Where captured states come from: one forward over a whole sequence, proved to repeat itself.

`EngineSource` is the engine's own prefill on the processor; `ForwardSource` is the differentiable
forward, for devices that the plain backend does not run on. A forward that gives other bits the
second time is refused before anything is captured with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from engine.checkpoint import load_weights
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import NumericsError
from engine.geometry import Geometry
from engine.norm import normalise
from engine.state import State
from engine.train.forward import Forward


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


class ForwardSource:
    """The trainer's forward over the checkpoint's weights, on any device."""

    name = "forward"

    def __init__(self, checkpoint: Path, device: torch.device) -> None:
        self.geometry = Geometry.load(checkpoint)
        self._device = device
        self._weights = load_weights(checkpoint, self.geometry, device=str(device))
        self._forward = Forward(self.geometry, device, rounding=True)

    @torch.inference_mode()
    def run(self, ids: Sequence[int]) -> States:
        """See `Source.run`."""
        row = torch.tensor([list(ids)], device=self._device)
        trace = self._forward.run(self._weights, row)
        return States(trace.taps[0].float().cpu(), trace.hidden[0].float().cpu())

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """See `Source.logits`."""
        return self._forward.logits(self._weights, hidden.to(self._device)).cpu()


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
