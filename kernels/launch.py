"""What every launch checks and knows: shapes, aliasing, and how the kernel will be executed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Decode and verify steps have 1 to 8 rows and run one tile, so that a row's bits never depend on
# its company; more rows than this are a prefill.
DECODE_ROWS = 8


def interpreted() -> bool:
    """Whether kernels run under Triton's interpreter (TRITON_INTERPRET=1) instead of a GPU."""
    return bool(triton.knobs.runtime.interpret)


def dot_type(x: Tensor) -> Any:
    """Operand type of a kernel's matrix products on `x`.

    The interpreter multiplies BF16 as if its bits were integers; float32 holds the same products.
    """
    return tl.bfloat16 if x.dtype == torch.bfloat16 and not interpreted() else tl.float32


def require(condition: bool, sentence: str) -> None:
    """Refuse a call with one sentence."""
    if not condition:
        raise ValueError(sentence)


def require_activation(name: str, x: Tensor, width: int | None = None) -> None:
    """Rows [..., width] of BF16 or float32 whose last axis is contiguous."""
    require(x.dtype in (torch.bfloat16, torch.float32), f"{name} is {x.dtype}: not BF16 or float32")
    require(x.stride(-1) == 1 or x.shape[-1] <= 1, f"the last axis of {name} is not contiguous")
    if width is not None:
        require(x.shape[-1] == width, f"{name} has {x.shape[-1]} channels, not {width}")


def require_contiguous(**tensors: Tensor | None) -> None:
    """Refuse any of `tensors` whose memory is not one run in order."""
    for name, tensor in tensors.items():
        require(tensor is None or tensor.is_contiguous(), f"{name} is not contiguous")


def output(
    out: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, *inputs: Tensor | None
) -> Tensor:
    """`out` if it fits and shares no memory with `inputs`; else a new tensor beside the first."""
    device = next(t for t in inputs if t is not None).device
    if out is None:
        return torch.empty(shape, dtype=dtype, device=device)
    require(
        tuple(out.shape) == shape and out.dtype == dtype,
        f"out is {out.dtype} {tuple(out.shape)}, not {dtype} {shape}",
    )
    require(out.device == device, f"out is on {out.device}, its inputs on {device}")
    require_contiguous(out=out)
    for tensor in inputs:
        require(tensor is None or not _overlap(out, tensor), "out shares memory with an input")
    return out


def require_apart(written: Sequence[Tensor], read: Sequence[Tensor | None]) -> None:
    """Refuse buffers, `written` in place, that share memory with each other or with `read`."""
    for i, buffer in enumerate(written):
        for other in (*written[:i], *read):
            apart = other is None or not _overlap(buffer, other)
            require(apart, "a buffer that is written shares memory with another operand")


def require_scalar(name: str, value: Tensor) -> None:
    """One int64 in device memory."""
    require(
        value.shape == (1,) and value.dtype == torch.int64,
        f"{name} is {value.dtype} {tuple(value.shape)}, not torch.int64 (1,)",
    )


def _overlap(a: Tensor, b: Tensor) -> bool:
    (a_first, a_end), (b_first, b_end) = _extent(a), _extent(b)
    return a_first < b_end and b_first < a_end


def _extent(tensor: Tensor) -> tuple[int, int]:
    """Addresses of the first byte and of the one after the last; equal for an empty tensor."""
    first = tensor.data_ptr()
    if tensor.numel() == 0:
        return first, first
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (last + 1) * tensor.element_size()
