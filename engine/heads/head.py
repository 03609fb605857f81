"""A draft head in training: its own tensors are parameters, its experts stay as they are shipped.

The backbone is not needed for it: captured states stand in for the forward, and only the embedding
and the output head, which the draft head shares, are read from the checkpoint.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.checkpoint import shards
from engine.errors import CheckpointError
from engine.geometry import Geometry
from engine.tensors import Entry, entries
from engine.train.export import decode
from engine.train.parameters import Parameters, group_outputs, with_output
from engine.weights import DraftWeights, HyperWeights, Weights, assemble_draft

PREFIX = "mtp."
_SHARED = ("embed.weight", "head.weight", "norm.weight", "hc_head_fn", "hc_head_base",
           "hc_head_scale")  # fmt: skip


class Head:
    """The head in folder `head`, or the checkpoint's own, on one device.

    `raw` holds its tensors as they lie on disk; `weights` are those of a model without layers,
    whose draft head follows the parameters.
    """

    def __init__(self, checkpoint: Path, device: torch.device, *, head: Path | None = None) -> None:
        self.geometry = Geometry.load(checkpoint)
        self.device = device
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.raw = raw_tensors(head or checkpoint, is_draft)
        values = decode(self.raw)
        known = [e for e in entries(self.geometry) if is_draft(e.name)]
        for name in (n for e in known for n in e.native if n not in values):
            raise CheckpointError(f"The head lacks the tensor {name}.")
        trained = [e for e in known if not is_expert(e.name)]
        self.parameters = Parameters(trained, device, self.dtype)
        self.parameters.load(values)
        self.parameters.refresh(quantised=True)
        experts = {n: self._frozen(values[n]) for e in known if is_expert(e.name) for n in e.native}
        draft = self._bound(assemble_draft({**self.parameters.leaves, **experts}, self.geometry))
        shared = {n: self._frozen(t, keep=n.startswith("hc_")) for n, t in
                  decode(raw_tensors(checkpoint, _SHARED.__contains__)).items()}  # fmt: skip
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
        blocks = self.weights.draft.stages
        experts = {
            f"{PREFIX}{s}.ffn.experts.{e}.{w}.weight": getattr(block.moe, w)[e]
            for s, block in enumerate(blocks)
            for w in ("w1", "w3", "w2")
            for e in range(self.geometry.n_routed_experts)
        }
        draft = assemble_draft({**moved, **experts}, self.geometry)
        return dataclasses.replace(self.weights, draft=_sharing(draft, self.weights.draft))

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


def _sharing(draft: DraftWeights, other: DraftWeights) -> DraftWeights:
    """`draft` with the very expert tensors of `other`, which may be most of a head's memory."""
    stages = tuple(
        dataclasses.replace(
            mine,
            moe=dataclasses.replace(mine.moe, w1=theirs.moe.w1, w2=theirs.moe.w2, w3=theirs.moe.w3),
        )
        for mine, theirs in zip(draft.stages, other.stages, strict=True)
    )
    return dataclasses.replace(draft, stages=stages)


def _host(group: Any) -> Any:
    if isinstance(group, Tensor):
        return group.detach().float().cpu()
    if isinstance(group, tuple):
        return tuple(_host(part) for part in group)
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
