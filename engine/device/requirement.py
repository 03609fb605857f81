"""What a machine must have for the triton backend, each lack said in one sentence.

This module can be imported where Triton cannot.
"""

from __future__ import annotations

import importlib.util

import pynvml
import torch

from engine.errors import DeviceError

Version = tuple[int, int]

_CAPABILITY = (8, 9)  # the first with FP8
_INSTEAD = "Ask for backend 'torch', which runs anywhere."


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


def _dotted(version: Version) -> str:
    return f"{version[0]}.{version[1]}"
