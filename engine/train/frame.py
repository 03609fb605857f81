"""What a batch's positions imply: rotary tables and attention masks, shared by all layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.geometry import Geometry
from kernels.oracle import rotary
from kernels.oracle.rounding import hadamard

Angles = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Frame:
    """Constants of a [B, T] batch; T is a multiple of the window W."""

    plain: Angles  # [T, pairs] cosine and sine of the window layers
    scaled: Angles  # [T, pairs] of the compressed layers
    rows: dict[int, Angles]  # ratio -> [T // ratio, pairs] at the start of each compressed row
    near: Tensor  # bool [B, T / W, W, 1, 2 W]: keys of the previous and of the query's own block
    far: dict[int, Tensor]  # ratio -> bool [B, T, T // ratio]: finished rows of the same document
    rotation: Tensor  # [index_head_dim, index_head_dim] Hadamard matrix


class Frames:
    """Makes frames; rotary tables and rotation are computed once per length."""

    def __init__(self, geometry: Geometry, device: torch.device) -> None:
        self._g = geometry
        self._device = device
        self._rotation = hadamard(torch.eye(geometry.index_head_dim, device=device))
        self.plain = rotary.frequencies(geometry.qk_rope_head_dim, geometry.rope_theta).to(device)
        self._scaled = rotary.yarn_frequencies(
            geometry.qk_rope_head_dim,
            geometry.compress_rope_theta,
            factor=geometry.yarn.factor,
            original_positions=geometry.yarn.original_max_position_embeddings,
            beta_fast=geometry.yarn.beta_fast,
            beta_slow=geometry.yarn.beta_slow,
        ).to(device)
        self._angles: dict[int, tuple[Angles, Angles, dict[int, Angles]]] = {}

    def make(self, starts: Tensor) -> Frame:
        """The frame of a batch whose position t belongs to a document begun at `starts` [B, T]."""
        length = starts.shape[1]
        plain, scaled, rows = self._tables(length)
        return Frame(
            plain=plain,
            scaled=scaled,
            rows=rows,
            near=self._near(starts),
            far={ratio: _far(starts, ratio) for ratio in rows},
            rotation=self._rotation,
        )

    def _tables(self, length: int) -> tuple[Angles, Angles, dict[int, Angles]]:
        if length not in self._angles:
            positions = torch.arange(length, device=self._device)
            ratios = sorted({r for r in self._g.layer_ratios if r})
            self._angles[length] = (
                rotary.table(positions, self.plain),
                rotary.table(positions, self._scaled),
                {r: rotary.table(positions[: length // r * r : r], self._scaled) for r in ratios},
            )
        return self._angles[length]

    def _near(self, starts: Tensor) -> Tensor:
        width = self._g.sliding_window
        blocks = starts.shape[1] // width
        query = torch.arange(starts.shape[1], device=starts.device).view(blocks, width, 1)
        key = query[:, :1] + torch.arange(-width, width, device=starts.device)
        inside = (key <= query) & (key > query - width)
        return (inside & (key >= starts.view(-1, blocks, width, 1)))[:, :, :, None]


def _far(starts: Tensor, ratio: int) -> Tensor:
    rows = torch.arange(starts.shape[1] // ratio, device=starts.device)
    done = (torch.arange(starts.shape[1], device=starts.device) + 1) // ratio
    return (rows < done[:, None]) & (rows * ratio >= starts[..., None])
