"""The backbone forward: one definition for prefill, decode and verify.

A decode step is the verify step of one row. Steps of up to TILE rows are padded to a tile, so every
matrix product has one shape and a row's bits do not depend on its companions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from engine.attention import Attention
from engine.config import EngineConfig
from engine.experts import Experts
from engine.geometry import Geometry
from engine.numerics import Numerics
from engine.piece import Piece
from engine.residual import Residual
from engine.state import State
from engine.step import Rotations, Step
from engine.weights import BlockWeights, HyperWeights, Weights
from kernels.oracle.norm import rms_norm


@dataclass(frozen=True, slots=True)
class Forward:
    """What one forward leaves: final streams and the taps that the draft head reads."""

    streams: Tensor  # [rows, m, hidden]
    taps: Tensor  # [rows, taps * hidden]
    count: int  # real rows


class Backbone:
    """Weights, configuration and the operations that it chose."""

    def __init__(
        self, geometry: Geometry, weights: Weights, config: EngineConfig, rotations: Rotations
    ) -> None:
        self.geometry = geometry
        self.weights = weights
        self.config = config
        self.rotations = rotations
        self.numerics = Numerics.named(config.numerics)
        self.residual = Residual(geometry, config)
        self.attention = Attention(geometry, self.numerics, config)
        self.experts = Experts(geometry, self.numerics, config)
        self._scores = Piece(self._head, compiled=config.compile == "pieces")

    def forward(self, ids: Tensor, state: State) -> Forward:
        """Run the token `ids` [t] after the state's committed ones; the step stays open."""
        step = Step.open(self.geometry, self.rotations, state, ids, row_tile=self.config.row_tile)
        streams = self.residual.start(embedding(step.ids, self.weights.embed))
        wanted = self.geometry.dspark_target_layer_ids
        taps: dict[int, Tensor] = {}
        for layer, block in enumerate(self.weights.layers):
            streams = self.block(streams, block, layer, step)
            if layer in wanted:
                taps[layer] = streams.mean(1)
        return Forward(streams, torch.cat([taps[i] for i in wanted], -1), step.count)

    def block(self, streams: Tensor, w: BlockWeights, layer: int, step: Step) -> Tensor:
        """One layer: attention, then experts, each between a mix of the streams and a write."""
        entry = self.residual.enter(streams, w.hc_attn, w.attn_norm)
        attended = self.attention(entry.x, w.attention, layer, w.ratio, step)
        streams = self.residual.leave(streams, attended, entry)
        entry = self.residual.enter(streams, w.hc_ffn, w.ffn_norm)
        routed = self.experts(entry.x, w.moe, step.ids, step.count)
        return self.residual.leave(streams, routed, entry)

    def logits(self, forward: Forward, *, last: bool = False) -> Tensor:
        """Next-token logits, float32, of every real row [count, vocab] or the last [1, vocab]."""
        streams = forward.streams
        if last:
            streams = streams[forward.count - 1 : forward.count]
        w = self.weights
        scores: Tensor = self._scores(
            streams, w.hc_head.fn, w.hc_head.base, w.hc_head.scale, w.norm, w.head
        )
        return scores if last else scores[: forward.count]

    def _head(
        self, streams: Tensor, fn: Tensor, base: Tensor, scale: Tensor, norm: Tensor, head: Tensor
    ) -> Tensor:
        hidden = self.residual.collapse(streams, HyperWeights(fn, base, scale))
        return linear(rms_norm(hidden, norm, self.geometry.rms_norm_eps), head).float()
