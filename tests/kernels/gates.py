"""The gates that every kernel passes, on any device: one description a kernel, one set of checks.

An `Operation` makes random inputs for a number of rows; the checks compare the kernel with its
oracle in higher precision, and with itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

Inputs = dict[str, Any]
Make = Callable[[int, torch.Generator], Inputs]


def interpreter() -> None:
    """Skip the module, loudly, unless its kernels can run under Triton's interpreter here."""
    if torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip(
            "INTERPRETER GATES SKIPPED: kernels are compiled here, see tests/gpu/test_kernels.py",
            allow_module_level=True,
        )
    os.environ["TRITON_INTERPRET"] = "1"
    pytest.importorskip("triton", reason="TRITON MISSING: NO KERNEL GATE RUNS HERE")
    import shortcuts  # which imports Triton, and so comes after the variable

    shortcuts.hasten()


@dataclass(frozen=True)
class Operation:
    """A kernel, its oracle, and inputs for it."""

    name: str
    kernel: Callable[..., Any]
    oracle: Callable[..., Any]
    make: Make
    rows: tuple[str, ...]  # the arguments with one entry a row
    rtol: float
    atol: float
    options: Inputs = field(default_factory=dict)  # known to the kernel only
    widen: bool = True  # whether the oracle takes float64
    start: str = ""  # the argument that holds the position of the first row
    # What roundings inside may add to each element, instead of `atol`, of the widened inputs.
    slack: Callable[[Inputs], Tensor] | None = None

    def __str__(self) -> str:
        return self.name

    def inputs(self, rows: int, device: str, seed: int | None = None) -> Inputs:
        """Fresh random inputs; the seed of a failure is in the generator's repr."""
        generator = torch.Generator()
        generator.manual_seed(torch.seed() % 2**31 if seed is None else seed)
        return {name: _to(value, device) for name, value in self.make(rows, generator).items()}

    def run(self, inputs: Inputs, **more: Any) -> tuple[Tensor, ...]:
        """The kernel's outputs, with every buffer that it allocates poisoned."""
        with poisoned():
            return as_tuple(self.kernel(**inputs, **self.options, **more))


def check_values(op: Operation, rows: int, device: str, seed: int | None = None) -> None:
    """Against the oracle on inputs widened to float64 where they are BF16 or float32."""
    inputs = op.inputs(rows, device, seed)
    got = op.run(inputs)
    given = {name: widened(value) if op.widen else value for name, value in inputs.items()}
    want = as_tuple(op.oracle(**given))
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape
        if g.dtype.is_floating_point:
            if op.slack is None:
                torch.testing.assert_close(g.double(), w.double(), rtol=op.rtol, atol=op.atol)
            else:
                share = (g.double() - w).abs() / (op.rtol * w.abs() + op.slack(given))
                assert share.max() <= 1.0, f"{share.max()} of what roundings explain"
        else:
            assert torch.equal(g.long(), w.long())


@dataclass(frozen=True)
class Launch:
    """One launch that several gates compare with: under the interpreter each takes a second."""

    op: Operation
    inputs: Inputs
    before: Inputs  # the tensors of `inputs`, as they were
    outputs: tuple[Tensor, ...]


def launch(op: Operation, rows: int, device: str) -> Launch:
    """`op` on fresh random inputs."""
    inputs = op.inputs(rows, device)
    before = {k: v.clone() for k, v in inputs.items() if isinstance(v, Tensor)}
    return Launch(op, inputs, before, op.run(inputs))


def check_out(first: Launch) -> None:
    """Every element of a poisoned `out` is written, nothing around it is."""
    (want,) = first.outputs
    around = torch.full((want.numel() + 64,), float("nan"), device=want.device).to(want.dtype)
    out = around[32 : 32 + want.numel()].view(want.shape)
    (got,) = first.op.run(first.inputs, out=out)
    assert got.data_ptr() == out.data_ptr()
    assert torch.equal(bits(out), bits(want))
    assert around[:32].isnan().all()
    assert around[32 + want.numel() :].isnan().all()


def check_twice(first: Launch) -> None:
    """The same inputs give the same bits, and are left alone."""
    second = first.op.run(first.inputs)
    for a, b in zip(first.outputs, second, strict=True):
        assert torch.equal(bits(a), bits(b))
    for name, value in first.before.items():
        assert torch.equal(bits(value), bits(first.inputs[name])), f"{name} was written to"


def check_rows(op: Operation, device: str, most: int = 8) -> None:
    """A row has the same bits alone, among others, and wherever it stands.

    Under the interpreter a step of each width stands at one end only, in turn.
    """
    inputs = op.inputs(most, device)
    whole = op.run(inputs)
    for count in range(1, most):
        ends = (0, most - count)
        for start in {ends[count % 2]} if device == "cpu" else set(ends):
            part = _rows(op, inputs, slice(start, start + count))
            for got, want in zip(op.run(part), whole, strict=True):
                assert torch.equal(bits(got), bits(want[start : start + count])), (count, start)


def check_unaligned(first: Launch) -> None:
    """Operands that start one element off any alignment give the same numbers.

    Not the same bits: a GPU loads unaligned rows by other instructions, and may add up a norm's
    squares in another order. An engine's buffers are aligned alike whatever the number of rows.
    """
    op = first.op
    got = op.run({name: off_by_one(value) for name, value in first.inputs.items()})
    for g, w in zip(got, first.outputs, strict=True):
        torch.testing.assert_close(g, w, rtol=op.rtol, atol=op.atol)


def check_empty(op: Operation, device: str) -> None:
    """No rows in, no rows out."""
    for got in op.run(op.inputs(0, device)):
        assert got.shape[0] == 0


def check_aliasing(first: Launch) -> None:
    """An `out` over any operand's memory is refused before anything is written."""
    op, inputs = first.op, first.inputs
    (want,) = first.outputs
    tensors = [name for name, value in inputs.items() if isinstance(value, Tensor)]
    for name in tensors:
        room = max(inputs[name].numel() * inputs[name].element_size(), 16)
        size = want.numel() * want.element_size()
        storage = torch.zeros(room + size, dtype=torch.uint8, device=want.device)
        source = inputs[name].contiguous()
        operand = storage[: room // 16 * 16 + 16][: source.numel() * source.element_size()]
        operand = operand.view(source.dtype).view(source.shape)
        operand.copy_(source)
        start = (source.numel() * source.element_size() - 1) // 16 * 16
        out = storage[start : start + size].view(want.dtype).view(want.shape)
        with pytest.raises(ValueError, match="shares memory"):
            op.run(inputs | {name: operand}, out=out)
        assert torch.equal(bits(operand), bits(source))


@contextmanager
def poisoned() -> Iterator[None]:
    """`torch.empty` and friends filled with NaN, or with the largest integer."""
    empty, like, new = torch.empty, torch.empty_like, Tensor.new_empty
    with (
        patch.object(torch, "empty", lambda *a, **k: poison(empty(*a, **k))),
        patch.object(torch, "empty_like", lambda *a, **k: poison(like(*a, **k))),
        patch.object(Tensor, "new_empty", lambda *a, **k: poison(new(*a, **k))),
    ):
        yield


def poison(tensor: Tensor) -> Tensor:
    """`tensor`, filled with what no kernel should let through."""
    if tensor.dtype.is_floating_point:
        return tensor.fill_(float("nan"))
    if tensor.dtype == torch.bool:
        return tensor.fill_(True)
    return tensor.fill_(torch.iinfo(tensor.dtype).max)


def bits(tensor: Tensor) -> Tensor:
    """The bytes of `tensor`."""
    return tensor.contiguous().flatten().view(torch.uint8)


def off_by_one(value: Any) -> Any:
    """`value` one element past the start of its memory, if it is a tensor."""
    if not isinstance(value, Tensor):
        return value
    room = torch.zeros(value.numel() + 1, dtype=value.dtype, device=value.device)
    moved = room[1:].view(value.shape)
    moved.copy_(value)
    return moved


def widened(value: Any) -> Any:
    """`value` in float64 if it is BF16 or float32."""
    if isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float32):
        return value.double()
    return value


def as_tuple(value: Any) -> tuple[Tensor, ...]:
    """One tensor, or nested tuples of them, as one tuple."""
    if isinstance(value, Tensor):
        return (value,)
    return tuple(tensor for part in value for tensor in as_tuple(part))


def _to(value: Any, device: str) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


def _rows(op: Operation, inputs: Inputs, rows: slice) -> Inputs:
    """Those rows in buffers of their own, aligned like the whole."""
    if op.start:
        inputs = inputs | {op.start: inputs[op.start] + rows.start}
    return {
        name: value[rows].clone() if name in op.rows and isinstance(value, Tensor) else value
        for name, value in inputs.items()
    }
