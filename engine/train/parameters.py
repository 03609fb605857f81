"""Trainable tensors: one flat float32 master, and the rounded working copy that the model runs on.

The master is what the optimiser updates. The working copy holds what the exported checkpoint will
hold (BF16, and from a given step on FP8 and MXFP4); its tensors are the leaves of the graph, so the
gradient passes straight through the rounding. Same-shaped matrices lie side by side, which lets the
optimiser take them as one batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from engine.formats import FP4_GROUP, FP8_BLOCK
from engine.geometry import Geometry
from engine.tensors import Entry
from engine.weights import BlockWeights, Weights, assemble
from kernels.oracle.rounding import E4M3_MAX, fp4_round, power_of_two_scale

_ORDER = ("fp4", "fp8", "bf16", "f32")
_ALIGN = 64  # elements; kernels want aligned pointers


@dataclass(frozen=True, slots=True)
class Place:
    """Where an entry lies in the flat buffers."""

    entry: Entry
    start: int

    @property
    def stop(self) -> int:
        return self.start + self.entry.size


class Parameters:
    """The tensors of `chosen` (no i64 ones) on one device; `dtype` is that of the working copy."""

    def __init__(self, chosen: Iterable[Entry], device: torch.device, dtype: torch.dtype) -> None:
        ordered = sorted(
            (e for e in chosen if e.format != "i64"),
            key=lambda e: (_ORDER.index(e.format), e.shape[::-1] if len(e.shape) > 1 else ()),
        )
        self.places: list[Place] = []
        self._edges = {"fp4": 0, "fp8": 0, "bf16": 0, "f32": 0}
        at = 0
        for entry in ordered:
            self.places.append(Place(entry, at))
            at += -(-entry.size // _ALIGN) * _ALIGN
            self._edges[entry.format] = at
        for before, after in zip(_ORDER, _ORDER[1:], strict=False):
            self._edges[after] = max(self._edges[after], self._edges[before])
        self.size = at
        self.wide = self._edges["bf16"]  # from here on the working copy is float32 too
        self.master = torch.zeros(at, device=device)
        self._low = torch.zeros(self.wide, device=device, dtype=dtype)
        self._high = torch.zeros(at - self.wide, device=device)
        self._low_grad, self._high_grad = torch.zeros_like(self._low), torch.zeros_like(self._high)
        self._narrow = self.alike("fp8")
        self.leaves = {p.entry.name: self._leaf(p) for p in self.places}

    def section(self, low: str, high: str) -> slice:
        """Flat range from the start of format `low` to the end of format `high`."""
        first = _ORDER.index(low)
        return slice(self._edges[_ORDER[first - 1]] if first else 0, self._edges[high])

    def alike(self, *formats: str) -> list[tuple[slice, tuple[int, int, int]]]:
        """Flat ranges of consecutive matrices of one shape, as [n, rows, columns]."""
        found: list[tuple[slice, tuple[int, int, int]]] = []
        for place in (p for p in self.places if p.entry.format in formats):
            rows, columns = place.entry.shape
            count = place.entry.size // (rows * columns)  # experts are stacks
            last, shape = found[-1] if found else (slice(0, 0), (0, 0, 0))
            if last.stop == place.start and shape[1:] == (rows, columns):
                found[-1] = slice(last.start, place.stop), (shape[0] + count, rows, columns)
            else:
                found.append((slice(place.start, place.stop), (count, rows, columns)))
        return found

    def view(self, flat: Tensor, place: Place) -> Tensor:
        """The part of a `flat` buffer [size] that belongs to `place`, in its full shape."""
        return flat[place.start : place.stop].view(place.entry.full_shape)

    @torch.no_grad()
    def refresh(self, *, quantised: bool) -> None:
        """Round the master into the working copy; FP8 and MXFP4 only when `quantised`."""
        fp4, fp8 = self._edges["fp4"], self._edges["fp8"]
        self._low[fp8:].copy_(self.master[fp8 : self.wide].bfloat16())
        self._high.copy_(self.master[self.wide :])
        if not quantised:
            self._low[:fp8].copy_(self.master[:fp8])
            return
        self._low[:fp4].copy_(fp4_round(self.master[:fp4], FP4_GROUP))
        for part, shape in self._narrow:
            rounded = fp8_blocks_round(self.master[part].view(shape))
            self._low[part].view(shape).copy_(rounded)

    def clear(self) -> None:
        """Zero the gradients."""
        self._low_grad.zero_()
        self._high_grad.zero_()
        for place in self.places:
            leaf = self.leaves[place.entry.name]
            leaf.grad = self._grad(place).view_as(leaf)

    def gradient(self) -> Tensor:
        """Float32 flat gradient [size]."""
        return torch.cat((self._low_grad.float(), self._high_grad))

    def native(self) -> dict[str, Tensor]:
        """The working copy by native name, detached views."""
        found: dict[str, Tensor] = {}
        for place in self.places:
            entry, leaf = place.entry, self.leaves[place.entry.name].detach()
            parts = leaf.unbind(0) if entry.stack else (leaf.view(entry.shape),)
            found.update(zip(entry.native, parts, strict=True))
        return found

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the master from native tensors of any dtype and device."""
        for place in self.places:
            parts = [tensors[name].float() for name in place.entry.native]
            value = torch.stack(parts) if place.entry.stack else parts[0]
            self.view(self.master, place).copy_(value)

    def _leaf(self, place: Place) -> Tensor:
        return self._of(self._low, self._high, place).detach().requires_grad_()

    def _grad(self, place: Place) -> Tensor:
        return self._of(self._low_grad, self._high_grad, place)

    def _of(self, low: Tensor, high: Tensor, place: Place) -> Tensor:
        if place.start < self.wide:
            return low[place.start : place.stop].view(place.entry.full_shape)
        return high[place.start - self.wide : place.stop - self.wide].view(place.entry.full_shape)


def fp8_blocks_round(matrices: Tensor) -> Tensor:
    """`formats.fp8_round_trip` of float32 `matrices` [n, rows, columns], all at once."""
    rows, columns = matrices.shape[1:]
    padded = pad(matrices, (0, -columns % FP8_BLOCK, 0, -rows % FP8_BLOCK))
    blocks = padded.unflatten(2, (-1, FP8_BLOCK)).unflatten(1, (-1, FP8_BLOCK))
    largest = blocks.abs().amax((2, 4), keepdim=True).clamp_min(1e-4)
    scale = power_of_two_scale(largest, E4M3_MAX)
    narrow = (blocks / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return (narrow.float() * scale).view(padded.shape)[:, :rows, :columns]


def bind(geometry: Geometry, groups: Sequence[Parameters], tables: Mapping[str, Tensor]) -> Weights:
    """`Weights` whose tensors are the leaves themselves, so that they follow every `refresh`.

    `tables` are the tid2eid tensors. Stacked experts and the grouped `wo_a` are the leaves in that
    very shape; every tensor of the geometry must be present exactly once.
    """
    native: dict[str, Tensor] = dict(tables)
    for group in groups:
        for place in group.places:
            entry = place.entry
            if entry.stack:
                native.update(zip(entry.native, group.leaves[entry.name].detach(), strict=True))
            else:
                native[entry.name] = group.leaves[entry.name]
    weights = assemble(native, geometry)
    for group in groups:
        group_outputs(geometry, group)
    leaves = {n: leaf for group in groups for n, leaf in group.leaves.items()}
    layers = (_rebind(b, leaves, f"layers.{i}.") for i, b in enumerate(weights.layers))
    stages = (_rebind(b, leaves, f"mtp.{s}.") for s, b in enumerate(weights.draft.stages))
    draft = dataclasses.replace(weights.draft, stages=tuple(stages))
    return dataclasses.replace(weights, layers=tuple(layers), draft=draft)


def with_output(block: BlockWeights, leaves: Mapping[str, Tensor], prefix: str) -> BlockWeights:
    """`block` with the grouped leaf of its `wo_a` itself, not a view of another."""
    attention = dataclasses.replace(block.attention, wo_a=leaves[prefix + "attn.wo_a.weight"])
    return dataclasses.replace(block, attention=attention)


def group_outputs(geometry: Geometry, parameters: Parameters) -> None:
    """Give the `wo_a` leaves the shape [groups, rank, k] in which the model uses them."""
    for name, leaf in parameters.leaves.items():
        if name.endswith("attn.wo_a.weight"):
            grouped = leaf.detach().view(geometry.o_groups, -1, leaf.shape[-1])
            parameters.leaves[name] = grouped.requires_grad_()


def _rebind(block: BlockWeights, leaves: Mapping[str, Tensor], prefix: str) -> BlockWeights:
    w1, w3, w2 = (leaves[f"{prefix}ffn.experts.*.{n}.weight"] for n in ("w1", "w3", "w2"))
    moe = dataclasses.replace(block.moe, w1=w1, w3=w3, w2=w2)
    return dataclasses.replace(with_output(block, leaves, prefix), moe=moe)
