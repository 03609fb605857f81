"""`hyper.sinkhorn` as one operator: its own gradient, and one GPU kernel a direction.

Each step divides by a row or a column sum; remembering those sums (m per step) makes the steps
reversible, so the backward pass needs no other activation. y = x / (sum(x) + eps) has the gradient
dx = (dy - sum(dy * y)) / (sum(x) + eps).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_SCHEMA = "(Tensor logits, int iterations, float eps) -> (Tensor, Tensor)"
_BACK_SCHEMA = "(Tensor grad, Tensor matrix, Tensor sums, int iterations, float eps) -> Tensor"


def balanced(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """Near doubly stochastic float32 [..., m, m] of `logits`, as `hyper.sinkhorn`."""
    shape = logits.shape
    flat = logits.float().reshape(-1, *shape[-2:]).contiguous()
    matrix: Tensor = torch.ops.flywheel_train.sinkhorn(flat, iterations, eps)[0]
    return matrix.view(shape)


@torch.library.custom_op("flywheel_train::sinkhorn", mutates_args=(), schema=_SCHEMA)
def _forward(logits, iterations, eps):  # type: ignore[no-untyped-def]
    """The matrix [n, m, m] and the sums [2 iterations - 1, n, m] that its steps divided by."""
    if logits.is_cuda:
        from engine.train import sinkhorn_kernel

        return sinkhorn_kernel.forward(logits, iterations, eps)
    c = torch.softmax(logits, -1) + eps
    sums = []
    for step in range(2 * iterations - 1):
        total = c.sum(_axis(step), keepdim=True) + eps
        sums.append(total.flatten(1))
        c = c / total
    return c, torch.stack(sums)


@_forward.register_fake
def _(logits, iterations, eps):  # type: ignore[no-untyped-def]
    n, m, _ = logits.shape
    return logits.new_empty(n, m, m), logits.new_empty(2 * iterations - 1, n, m)


@torch.library.custom_op("flywheel_train::sinkhorn_back", mutates_args=(), schema=_BACK_SCHEMA)
def _backward(grad, matrix, sums, iterations, eps):  # type: ignore[no-untyped-def]
    """Gradient of the logits from that of the matrix."""
    if grad.is_cuda:
        from engine.train import sinkhorn_kernel

        return sinkhorn_kernel.backward(grad, matrix, sums, iterations, eps)
    c = matrix
    for step in reversed(range(2 * iterations - 1)):
        axis = _axis(step)
        total = sums[step].unsqueeze(axis)
        grad = (grad - (grad * c).sum(axis, keepdim=True)) / total
        c = c * total
    c = c - eps
    return c * (grad - (grad * c).sum(-1, keepdim=True))


@_backward.register_fake
def _(grad, matrix, sums, iterations, eps):  # type: ignore[no-untyped-def]
    return torch.empty_like(matrix)


def _axis(step: int) -> int:
    """Columns (sum over rows, axis -2) come first and last."""
    return -2 if step % 2 == 0 else -1


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.iterations, ctx.eps = inputs[1], inputs[2]
    ctx.save_for_backward(*output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _gradient(ctx: Any, grad: Tensor, _sums: Tensor | None) -> tuple[Tensor, None, None]:
    matrix, sums = ctx.saved_tensors
    back = torch.ops.flywheel_train.sinkhorn_back
    return back(grad.contiguous(), matrix, sums, ctx.iterations, ctx.eps), None, None


_forward.register_autograd(_gradient, setup_context=_save)
