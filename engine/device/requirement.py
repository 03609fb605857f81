"""What a machine must have for the triton backend, each lack said in one sentence."""

from __future__ import annotations

import importlib.util

import pynvml
import torch

from engine.config import EngineConfig
from engine.device import state
from engine.device.weights import allocate
from engine.errors import DeviceError
from engine.geometry import Geometry

Version = tuple[int, int]

_CAPABILITY = (8, 9)  # the first with FP8
_INSTEAD = "Ask for backend 'torch', which runs anywhere."
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def device() -> torch.device:
    """The device that kernels run on here; under Triton's interpreter it is the processor.

    Raises DeviceError where there is none.
    """
    if importlib.util.find_spec("triton") is None:
        raise DeviceError(f"The triton backend needs Triton, which is not installed. {_INSTEAD}")
    from kernels.launch import interpreted

    if interpreted():
        return torch.device("cpu")
    if torch.version.cuda is None:
        raise DeviceError(
            f"The triton backend needs a GPU; this PyTorch is built without CUDA. {_INSTEAD}"
        )
    check_driver(_driver(), _assembler())
    if not torch.cuda.is_available():
        raise DeviceError(f"The triton backend needs a GPU, and none was found. {_INSTEAD}")
    found = torch.device("cuda", torch.cuda.current_device())
    check_capability(torch.cuda.get_device_name(found), torch.cuda.get_device_capability(found))
    return found


def check_capability(name: str, capability: Version) -> None:
    """Refuse a GPU without FP8."""
    if capability < _CAPABILITY:
        raise DeviceError(
            f"The triton backend needs a GPU with FP8 (compute capability 8.9 or later); "
            f"{name} has {_dotted(capability)}. {_INSTEAD}"
        )


def check_driver(driver: Version | None, assembler: Version | None) -> None:
    """Refuse a driver of an older CUDA than Triton assembles for; None is unknown."""
    if driver is not None and assembler is not None and driver[0] < assembler[0]:
        raise DeviceError(
            f"The GPU's driver supports CUDA {_dotted(driver)}, and this Triton assembles for "
            f"CUDA {_dotted(assembler)}: update the driver. {_INSTEAD}"
        )


def _driver() -> Version | None:
    """The newest CUDA that the driver supports."""
    try:
        pynvml.nvmlInit()
        try:
            number = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None
    return number // 1000, number % 1000 // 10


def _assembler() -> Version | None:
    """The CUDA of Triton's assembler."""
    import triton

    try:
        major, minor = triton.knobs.nvidia.ptxas.version.split(".")[:2]
        return int(major), int(minor)
    except (AttributeError, RuntimeError, ValueError):
        return None


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
        + state.size_bytes(geometry, context, dtype)
        + tables
        + config.prefill_chunk * row_bytes(geometry, dtype)
        + _WORK_BYTES
    )


_WORK_BYTES = 2 << 30  # graphs, kernels and what the allocator keeps


def row_bytes(geometry: Geometry, dtype: torch.dtype) -> int:
    """Memory that one row of a prefill chunk takes at its fullest: around the experts."""
    g = geometry
    slots = g.num_experts_per_tok + 1
    experts = slots * (4 * g.hidden_size + dtype.itemsize * g.moe_intermediate_size)
    heads = 3 * dtype.itemsize * g.num_attention_heads * g.head_dim
    streams = 3 * dtype.itemsize * g.hc_mult * g.hidden_size
    taps = dtype.itemsize * len(g.dspark_target_layer_ids) * g.hidden_size
    return max(experts, heads) + streams + taps


def check_memory(geometry: Geometry, config: EngineConfig, device: torch.device) -> None:
    """Refuse, before anything is loaded, what does not fit the free memory of `device`."""
    needed = needed_bytes(geometry, config)
    if device.type != "cuda":
        return
    free, total = torch.cuda.mem_get_info(device)
    if needed > free:
        raise DeviceError(
            f"This model needs {_gib(needed)} of GPU memory at context {config.context}; "
            f"{_gib(free)} of {_gib(total)} are free. Free some, shorten `context` or "
            f"`prefill_chunk`, or ask for backend 'torch'."
        )


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


def _dotted(version: Version) -> str:
    return f"{version[0]}.{version[1]}"
