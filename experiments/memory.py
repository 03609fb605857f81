"""How a sequence's state is kept and filled."""

from __future__ import annotations

from flywheel.lever import Lever

LEVERS: tuple[Lever, ...] = (
    Lever(
        name="cache.packed",
        kind="config",
        change={"cache_format": "packed"},
        claim="rows of a third of the bytes are read faster than they take to unpack",
        falsify="unpacking costs more than the bytes it saves at this size",
        predicted_gain=0.002,
        family="cache",
        needs=("torch",),
    ),
    Lever(
        name="prefill.chunk.128",
        kind="config",
        change={"prefill_chunk": 128},
        claim="longer prefill chunks leave decode as it is and warm its caches alike",
        falsify="decode time per token moves either way",
        predicted_gain=0.001,
        family="prefill.chunk",
    ),
    Lever(
        name="prefill.chunk.32",
        kind="config",
        change={"prefill_chunk": 32},
        claim="shorter prefill chunks leave decode as it is and hold less memory",
        falsify="decode time per token moves either way",
        predicted_gain=0.001,
        family="prefill.chunk",
    ),
    Lever(
        name="prefill.chunk.1024",
        kind="config",
        change={"prefill_chunk": 1024},
        claim="long prefill chunks leave decode as it is and read the weights once for more tokens",
        falsify="decode time per token moves either way",
        predicted_gain=0.001,
        family="prefill.chunk",
        needs=("triton",),
    ),
)
