"""A layer's launches from its first product to its last, one after the other: what gaps cost.

Attention is left out: its time depends on the context. Each launch either waits for the one before
or begins early, see `kernels.ahead`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernels import fp8_linear, heads, intake, project
from kernels.bench import ending, rings, shape
from kernels.bench.clock import rotations
from kernels.bench.tunable import Calls
from kernels.workspace import Workspace

_GROUPS = 8
_SIDE = ending.SIDES["csa"]
_PRODUCTS = (
    shape.Linear("wq_b beside the index's", shape.HEADS * (shape.HEAD + 128), shape.LATENT),
    shape.Linear("wo_a", _GROUPS * 1024, shape.HEADS * shape.HEAD // _GROUPS, _GROUPS),
    shape.Linear("wo_b", shape.HIDDEN, _GROUPS * 1024),
)
_BYTES = ending.project_bytes(_SIDE) + sum(linear.weight_bytes for linear in _PRODUCTS)


def every(rows: int) -> Iterator[tuple[str, float, Callable[[], Calls]]]:
    """Name, bytes that one chain must read, and what makes the calls."""
    yield "layer dense chain", _BYTES, partial(_calls, rows, early=False)
    yield "layer dense chain, early", _BYTES, partial(_calls, rows, early=True)


def _calls(rows: int, *, early: bool) -> Calls:
    x = torch.randn(rows, shape.HIDDEN, device="cuda", dtype=torch.bfloat16)
    step = Step(rings.LAYERS["sparse"](rows), Workspace.on("cuda"), early)
    return [partial(step.run, x, Weights.random()) for _ in range(rotations(_BYTES))]


@dataclass(frozen=True, slots=True)
class Weights:
    """Of one layer."""

    first: tuple[Tensor, Tensor, Tensor | None]
    products: list[tuple[Tensor, Tensor]]

    @classmethod
    def random(cls) -> Weights:
        products = [ending.fp8(linear.n, linear.k) for linear in _PRODUCTS]
        return cls(ending.project_weights(_SIDE), products)


@dataclass(frozen=True, slots=True)
class Step:
    """The launches of a layer."""

    layer: rings.Layer
    workspace: Workspace
    early: bool

    def run(self, x: Tensor, weights: Weights) -> Tensor:
        """`x` [m, d] through all of them."""
        tile = self._when(project.TILE)
        y8, y16 = project.project(x, *weights.first, tile=tile, workspace=self.workspace)
        latents = replace(self.layer, y8=y8, y16=y16).intake(self._when(intake.TILE))
        y = self._product(0, latents, weights)
        main, _ = replace(self.layer, y=y).heads(self._when(heads.TILE))
        return self._product(2, self._product(1, main.view(len(x), -1), weights), weights)

    def _product(self, which: int, x: Tensor, weights: Weights) -> Tensor:
        linear = _PRODUCTS[which]
        return fp8_linear.multiply(
            x, *weights.products[which], groups=linear.groups, workspace=self.workspace,
            tile=self._when(fp8_linear.decode_tile(linear.n, linear.k)),
        )  # fmt: skip

    def _when(self, tile: Any) -> Any:
        return replace(tile, early=self.early)
