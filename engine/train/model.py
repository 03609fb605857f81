"""The model in training: parameters of backbone and draft head, bound to one set of weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from torch import Tensor

from engine.geometry import Geometry
from engine.tensors import entries, layer_of
from engine.train import initial
from engine.train.export import read
from engine.train.forward import Forward
from engine.train.parameters import Parameters, bind
from engine.weights import Weights

_BALANCE_RATE = 1e-3  # step of the router bias, in units of the affinity (0 .. about 2)


class Model:
    """Parameters, weights and forward of one geometry on one device."""

    def __init__(
        self,
        geometry: Geometry,
        device: torch.device,
        *,
        seed: int = 1,
        start: Path | None = None,
        fresh_head: bool = False,
        compiled: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Fresh values from `seed`, or those of the checkpoint folder `start`.

        With `fresh_head` only the backbone is taken from `start`.
        """
        self.geometry, self.device = geometry, device
        low = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
        known = entries(geometry)
        self.backbone = Parameters((e for e in known if not _drafts(e.name)), device, low)
        self.draft = Parameters((e for e in known if _drafts(e.name)), device, low)
        if start is None:
            values, tables = initial.values(geometry, seed), initial.tables(geometry, seed)
        else:
            values = read(start / "model.safetensors")
            tables = {n: t for n, t in values.items() if n.endswith("tid2eid")}
        self.tables = {name: table.to(device) for name, table in tables.items()}
        self.backbone.load(values)
        self.draft.load(initial.values(geometry, seed) if fresh_head else values)
        self.refresh(quantised=start is not None)
        self.weights = bind(geometry, (self.backbone, self.draft), self.tables)
        self.use(compiled=compiled)

    def use(self, *, compiled: bool) -> None:
        """Choose compiled or plain sublayers for the training shape."""
        if getattr(self, "compiled", None) == compiled:
            return
        self.forward = Forward(self.geometry, self.device, rounding=True, compiled=compiled)
        self.plain = Forward(self.geometry, self.device, rounding=True)
        self.compiled = compiled

    def refresh(self, *, quantised: bool) -> None:
        """Round all masters into the working copies."""
        self.backbone.refresh(quantised=quantised)
        self.draft.refresh(quantised=quantised)

    def native(self) -> dict[str, Tensor]:
        """All working tensors by native name, on the CPU."""
        found = {**self.backbone.native(), **self.draft.native(), **self.tables}
        return {name: tensor.detach().cpu() for name, tensor in found.items()}

    def frozen(self) -> Weights:
        """The weights with the shared embedding and head cut off from gradients."""
        w = self.weights
        return dataclasses.replace(w, embed=w.embed.detach(), head=w.head.detach())

    @torch.no_grad()
    def balance(self, loads: list[Tensor], factor: Tensor | float) -> None:
        """Raise the router bias of experts that got less than their share, lower the others'."""
        for place in self.backbone.places:
            layer = layer_of(place.entry.name)
            if layer is not None and place.entry.name.endswith("gate.bias"):
                load = loads[layer]
                bias = self.backbone.view(self.backbone.master, place)
                bias += _BALANCE_RATE * factor * torch.sign(load.mean() - load)


def _drafts(name: str) -> bool:
    return name.startswith("mtp.")
