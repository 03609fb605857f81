"""A draft head in training: its own tensors are parameters, its experts stay as they are shipped.

The backbone is not needed for it: captured states stand in for the forward, and only the embedding
and the output head, which the draft head shares, are read from the checkpoint.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.checkpoint import shards
from engine.errors import CheckpointError
from engine.geometry import Geometry
from engine.tensors import Entry, entries
from engine.train.chosen import decoded
from engine.train.export import decode
from engine.train.parameters import Parameters, group_outputs, with_output
from engine.weights import DraftWeights, HyperWeights, MoeWeights, Weights, assemble_draft

PREFIX = "mtp."
SHARED = ("embed.weight", "head.weight", "norm.weight", "hc_head_fn", "hc_head_base",
          "hc_head_scale")  # fmt: skip


# Up to here every expert is computed for every row, which is faster and can be recorded as a graph.
DECODED_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Holding:
    """How routed experts are held, and why."""

    packed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Shipped:
    """What a head is made of, on any device."""

    geometry: Geometry
    trained: Mapping[str, Tensor]  # by native name, scales folded in
    experts: Mapping[str, Tensor]  # codes and scales of each stage, stacked, under `*`
    shared: Mapping[str, Tensor]  # what the head reads of its backbone, decoded
    raw: Mapping[str, Tensor]  # the head as it lies on disk; empty where it lies on none


class Head:
    """The head in folder `head`, or the checkpoint's own, on one device.

    `raw` holds its tensors as they lie on disk; `weights` are those of a model without layers,
    whose draft head follows the parameters. Experts are held decoded or `packed`, as `holding` of
    their geometry says where it is None.
    """

    def __init__(
        self,
        checkpoint: Path,
        device: torch.device,
        *,
        head: Path | None = None,
        packed: bool | None = None,
    ) -> None:
        self._take(_shipped(checkpoint, head, device), device, packed)

    @classmethod
    def of(cls, shipped: Shipped, device: torch.device, *, packed: bool | None = None) -> Head:
        """A head of tensors that need not lie on any disk."""
        head = cls.__new__(cls)
        head._take(shipped, device, packed)
        return head

    def _take(self, shipped: Shipped, device: torch.device, packed: bool | None) -> None:
        self.geometry, self.device, self.raw = shipped.geometry, device, shipped.raw
        self.dtype = working_dtype(device)
        self.packed = holding(shipped.geometry).packed if packed is None else packed
        self.parameters = Parameters(trained_entries(self.geometry), device, self.dtype)
        self.parameters.load(shipped.trained)
        self.parameters.refresh(quantised=True)
        self._experts = self._held(shipped.experts)
        leaves = self._with_experts(self.parameters.leaves)
        draft = self._bound(assemble_draft(leaves, self.geometry))
        shared = {n: self._frozen(t, keep=n.startswith("hc_")) for n, t in shipped.shared.items()}
        self.weights = Weights(
            embed=shared["embed.weight"],
            layers=(),
            norm=shared["norm.weight"],
            hc_head=HyperWeights(*(shared[f"hc_head_{n}"] for n in ("fn", "base", "scale"))),
            head=shared["head.weight"],
            draft=draft,
        )

    @property
    def trained(self) -> tuple[Entry, ...]:
        """The tensors that training may change."""
        return tuple(place.entry for place in self.parameters.places)

    def native(self) -> dict[str, Tensor]:
        """The trained tensors by name, rounded as an export will hold them, float32 on the CPU."""
        return {n: t.detach().float().cpu() for n, t in self.parameters.native().items()}

    def masters(self) -> dict[str, Tensor]:
        """The trained tensors by name before any rounding, float32 on the CPU."""
        p = self.parameters
        return {x.entry.name: p.view(p.master, x).detach().cpu() for x in p.places}

    def on_host(self) -> Weights:
        """The weights in float32 on the CPU, as the engine's plain backend holds them."""
        copy: Weights = _host(self.weights)
        return copy

    def as_it_is(self) -> Weights:
        """A copy of the weights that training does not move; the experts are shared."""
        moved = {n: t.clone() for n, t in self.parameters.native().items()}
        draft = assemble_draft(self._with_experts(moved), self.geometry)
        return dataclasses.replace(self.weights, draft=draft)

    def _held(self, experts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The stacked experts on the device, packed or decoded."""
        found = {name: tensor.to(self.device) for name, tensor in experts.items()}
        if self.packed:
            return found
        return {
            name: decoded(found[name], found[scale_name(name)], self.dtype)
            for name in found
            if name != scale_name(name)
        }

    def _with_experts(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {**tensors, **self._experts}

    def _bound(self, draft: DraftWeights) -> DraftWeights:
        """`draft` with leaves alone: a view of one would remember the stream that it was made on,
        and no step could be recorded on another."""
        group_outputs(self.geometry, self.parameters)
        stages = (
            with_output(block, self.parameters.leaves, f"{PREFIX}{s}.")
            for s, block in enumerate(draft.stages)
        )
        return dataclasses.replace(draft, stages=tuple(stages))

    def _frozen(self, tensor: Tensor, *, keep: bool = False) -> Tensor:
        return tensor.to(self.device, torch.float32 if keep else self.dtype)


def holding(geometry: Geometry) -> Holding:
    """How a training holds the routed experts of `geometry`, which it does not change."""
    decoded_bytes = sum(e.size for e in expert_entries(geometry)) * torch.bfloat16.itemsize
    size, most = f"{decoded_bytes / 2**30:.1f} GiB", f"{DECODED_BYTES / 2**30:.1f} GiB"
    if decoded_bytes > DECODED_BYTES:
        return Holding(True, f"the routed experts would take {size} decoded, more than {most}")
    return Holding(False, f"the routed experts take {size} decoded, no more than {most}")


def trained_entries(geometry: Geometry) -> tuple[Entry, ...]:
    """The tensors of a head that training may change."""
    return tuple(e for e in entries(geometry) if is_draft(e.name) and not is_expert(e.name))


def expert_entries(geometry: Geometry) -> tuple[Entry, ...]:
    """The routed experts of a head, each matrix of a stage as one stack."""
    return tuple(e for e in entries(geometry) if is_draft(e.name) and is_expert(e.name))


def working_dtype(device: torch.device) -> torch.dtype:
    """Of the copy of a head that is computed with."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def scale_name(name: str) -> str:
    """The name of the scales that belong to the tensor `name`."""
    return name.removesuffix(".weight").removesuffix(".scale") + ".scale"


def _shipped(checkpoint: Path, head: Path | None, device: torch.device) -> Shipped:
    """What lies in the folders of a checkpoint and a head; experts on `device` already."""
    geometry = Geometry.load(checkpoint)
    raw = raw_tensors(head or checkpoint, is_draft)
    for entry in (e for e in entries(geometry) if is_draft(e.name)):
        wanted = (*entry.native, *(map(scale_name, entry.native) if entry.scaled else ()))
        for name in (n for n in wanted if n not in raw):
            raise CheckpointError(f"The head lacks the tensor {name}.")
    return Shipped(
        geometry,
        decode({n: t for n, t in raw.items() if not is_expert(n)}),
        _stacked(geometry, raw, device),
        decode(raw_tensors(checkpoint, SHARED.__contains__)),
        raw,
    )


def _stacked(
    geometry: Geometry, raw: Mapping[str, Tensor], device: torch.device
) -> dict[str, Tensor]:
    """The experts' codes and scales on `device`, one stack for each matrix of a stage."""
    found: dict[str, Tensor] = {}
    for entry in expert_entries(geometry):
        for rename in (str, scale_name):
            names = [rename(name) for name in entry.native]
            first = raw[names[0]]
            shape = (len(names), *first.shape)
            whole = torch.empty(shape, dtype=first.dtype, device=device)
            for place, name in zip(whole, names, strict=True):
                if raw[name].shape != place.shape or raw[name].dtype != place.dtype:
                    raise CheckpointError(f"The tensor {name} is not what {names[0]} is.")
                place.view(torch.uint8).copy_(raw[name].view(torch.uint8))
            found[rename(entry.name)] = whole
    return found


def _host(group: Any) -> Any:
    if isinstance(group, Tensor):
        return group.detach().float().cpu()
    if isinstance(group, tuple):
        return tuple(_host(part) for part in group)
    if isinstance(group, MoeWeights) and group.scales is not None:
        wide = {n: decoded(getattr(group, n).cpu(), getattr(group.scales, n).cpu(), torch.float32)
                for n in ("w1", "w3", "w2")}  # fmt: skip
        return _host(dataclasses.replace(group, scales=None, **wide))
    if dataclasses.is_dataclass(group) and not isinstance(group, type):
        parts = {f.name: _host(getattr(group, f.name)) for f in dataclasses.fields(group)}
        return dataclasses.replace(group, **parts)
    return group


def is_draft(name: str) -> bool:
    """Whether a tensor belongs to the draft head."""
    return name.startswith(PREFIX)


def is_expert(name: str) -> bool:
    """Whether a tensor belongs to a routed expert, which no training changes."""
    return ".ffn.experts." in name


def raw_tensors(folder: Path, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    """The wanted tensors of a checkpoint or head folder as they lie on disk, scales with them."""
    found: dict[str, Tensor] = {}
    for path in shards(folder):
        try:
            with safe_open(path, framework="pt") as stream:
                for name in filter(wanted, stream.keys()):
                    if name in found:
                        raise CheckpointError(f"The tensor {name} appears in two shards.")
                    found[name] = stream.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"The shard {path} is damaged or truncated: {error}.") from None
    if not found:
        raise CheckpointError(f"{folder} holds none of the tensors that were looked for.")
    return found
