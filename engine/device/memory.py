"""How much memory of a GPU a model takes, before anything is loaded."""

from __future__ import annotations

import torch

from engine.config import EngineConfig
from engine.device import state
from engine.device.weights import allocate
from engine.errors import DeviceError
from engine.geometry import Geometry

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_WORK_BYTES = 2 << 30  # graphs, kernels and what the allocator keeps


def needed_bytes(geometry: Geometry, config: EngineConfig) -> int:
    """Memory for weights, the state of one sequence, tables, and the work of a prefill chunk.

    Raises ConfigError for a geometry that the backend cannot hold.
    """
    weights, _ = allocate(geometry, "meta")
    dtype = DTYPES[config.dtype]
    context = config.context or geometry.max_position_embeddings
    tables = 4 * context * geometry.qk_rope_head_dim * 2
    return (
        weights.size()["weights_bytes"]
        + state.size_bytes(geometry, context, dtype, packed=config.key_format == "packed")
        + tables
        + config.prefill_chunk * row_bytes(geometry, dtype)
        + _WORK_BYTES
    )


def row_bytes(geometry: Geometry, dtype: torch.dtype) -> int:
    """Memory that one row of a prefill chunk takes at its fullest: around the experts."""
    g = geometry
    slots = g.num_experts_per_tok + 1
    experts = slots * (4 * g.hidden_size + dtype.itemsize * g.moe_intermediate_size)
    heads = 3 * dtype.itemsize * g.num_attention_heads * g.head_dim
    streams = 3 * dtype.itemsize * g.hc_mult * g.hidden_size
    taps = dtype.itemsize * len(g.dspark_target_layer_ids) * g.hidden_size
    return max(experts, heads) + streams + taps


def check(geometry: Geometry, config: EngineConfig, device: torch.device) -> None:
    """Refuse, before anything is loaded, what does not fit the free memory of `device`."""
    needed = needed_bytes(geometry, config)
    if device.type == "cuda":
        check_free(needed, *torch.cuda.mem_get_info(device), config.context)


def check_free(needed: int, free: int, total: int, context: int) -> None:
    """Refuse what needs more bytes than are free."""
    if needed > free:
        raise DeviceError(
            f"This model needs {_gib(needed)} of GPU memory at context {context}; {_gib(free)} of "
            f"{_gib(total)} are free. Free some, shorten `context` or `prefill_chunk`, or ask for "
            "backend 'torch'."
        )


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
