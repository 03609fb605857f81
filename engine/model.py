"""The backbone forward: one definition for prefill, decode and verify.

A decode step is the verify step of one row. Steps of up to TILE rows are padded to a tile, so every
matrix product has one shape and a row's bits do not depend on its companions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from engine.attention import Attention, Projected
from engine.compression import Compressed
from engine.config import EngineConfig
from engine.experts import Experts
from engine.geometry import Geometry
from engine.norm import normalise
from engine.numerics import Numerics
from engine.piece import Piece
from engine.residual import Entry, Residual
from engine.state import TILE, State
from engine.step import Joint, Rotation, Step, Tables
from engine.weights import BlockWeights, Weights


@dataclass(frozen=True, slots=True)
class Forward:
    """What one forward leaves: final streams and the taps that the draft head reads."""

    streams: Tensor  # [rows, m, hidden]
    taps: Tensor  # [rows, taps * hidden]
    count: int  # real rows


class Attended(NamedTuple):
    """Queries of a block and the keys that they attend to."""

    queries: Tensor
    window: Tensor
    bias: Tensor  # [rows, 1, keys], added to scores
    extra: Compressed | None


class Backbone:
    """Weights, configuration and the operations that it chose."""

    def __init__(
        self, geometry: Geometry, weights: Weights, config: EngineConfig, tables: Tables
    ) -> None:
        self.geometry = geometry
        self.weights = weights
        self.config = config
        self.tables = tables
        self.numerics = Numerics.named(config.numerics)
        self.residual = Residual(geometry, config)
        self.attention = Attention(geometry, self.numerics, config)
        self.experts = Experts(geometry, self.numerics, config)
        compiled = config.compile == "blocks"
        self._open = Piece(self._open_block, compiled=compiled)
        self._close = Piece(self._close_block, compiled=compiled)
        self._head = Piece(self._head_scores, compiled=compiled)
        for block in (*weights.layers, *weights.draft.stages) if compiled else ():
            self.attention.prepare(block.attention)
            self.experts.prepare(block.moe)

    def forward(self, ids: Tensor, state: State) -> Forward:
        """Run the token `ids` [t] after the state's committed ones; the step stays open."""
        step = Step.open(self.geometry, self.tables, state, ids, row_tile=self.config.row_tile)
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
        rotation = step.compressed if w.ratio else step.plain
        entry, projected = self._open(streams, w, rotation)
        window, extra = self.attention.gather(entry.x, projected, w.attention, layer, step)
        attended = Attended(projected.queries, window, step.window_bias, extra)
        return self.close(streams, entry, attended, w, rotation, step.ids, step.count)

    def open(self, streams: Tensor, w: BlockWeights, rotation: Rotation) -> tuple[Entry, Projected]:
        """The part of a block before its rows are stored."""
        return self._open(streams, w, rotation)

    def close(
        self,
        streams: Tensor,
        entry: Entry,
        attended: Attended,
        w: BlockWeights,
        rotation: Rotation,
        ids: Tensor,
        count: int,
    ) -> Tensor:
        """The part of a block after its keys are known: new streams [rows, m, hidden]."""
        given = None if w.moe.experts_by_token is None else w.moe.experts_by_token[ids]
        real = 0 if self.config.moe == "dense" else count
        return self._close(streams, entry, attended, w, rotation, given, real)

    def _open_block(
        self, streams: Tensor, w: BlockWeights, rotation: Rotation
    ) -> tuple[Entry, Projected]:
        entry = self.residual.enter(streams, w.hc_attn, w.attn_norm)
        return entry, self.attention.project(entry.x, w.attention, rotation)

    def _close_block(
        self,
        streams: Tensor,
        entry: Entry,
        attended: Attended,
        w: BlockWeights,
        rotation: Rotation,
        given: Tensor | None,
        real: int,
    ) -> Tensor:
        short = streams.shape[0] <= TILE
        finish = self.attention.finish if short else self.attention.finish_long
        mixed = finish(*attended, w.attention, rotation)
        return self._end_block(streams, entry, mixed, w, given, real, short)

    def _end_block(
        self,
        streams: Tensor,
        entry: Entry,
        mixed: Tensor,
        w: BlockWeights,
        given: Tensor | None,
        real: int,
        short: bool,
    ) -> Tensor:
        streams = self.residual.leave(streams, mixed, entry)
        entry = self.residual.enter(streams, w.hc_ffn, w.ffn_norm)
        outputs = self.experts(entry.x, w.moe, given, real, short=short)
        return self.residual.leave(streams, outputs, entry)

    # ---------------------------------------------------------------- several sequences at once

    def forward_together(self, work: Sequence[tuple[Tensor, State]]) -> tuple[Forward, Joint]:
        """Run ids [t] after each of several states; every step stays open.

        Products are shared, whatever looks at a state is done for one sequence after the other
        with the shapes of a step of its own. So a row has the bits of `forward` wherever a product
        gives them to it at every number of whole tiles (`engine.independence`).
        """
        tile = self.config.row_tile
        steps = [
            Step.open(self.geometry, self.tables, state, ids, row_tile=tile) for ids, state in work
        ]
        joint = Joint.of(steps, self.tables)
        streams = self.residual.start(embedding(joint.ids, self.weights.embed))
        wanted = self.geometry.dspark_target_layer_ids
        taps: dict[int, Tensor] = {}
        for layer, block in enumerate(self.weights.layers):
            streams = self._block_together(streams, block, layer, joint)
            if layer in wanted:
                taps[layer] = streams.mean(1)
        return Forward(streams, torch.cat([taps[i] for i in wanted], -1), joint.count), joint

    def _block_together(self, streams: Tensor, w: BlockWeights, layer: int, joint: Joint) -> Tensor:
        rotation = joint.compressed if w.ratio else joint.plain
        entry, projected = self.open_together(streams, w, rotation)
        # Queries lie in memory beside the row, as a lone step has them: products go by that too.
        beside = joint.apart(torch.cat((projected.queries, projected.row[:, None]), 1))
        own = Projected(joint.apart(projected.latent), beside[:, :-1], beside[:, -1])
        inputs = joint.apart(entry.x)
        heads = projected.queries.new_zeros(projected.queries.shape, dtype=torch.float32)
        for step, padded, rows in zip(joint.steps, joint.padded, joint.rows, strict=True):
            mine = Projected(*(part[padded] for part in own))
            window, extra = self.attention.gather(inputs[padded], mine, w.attention, layer, step)
            taken = self.attention.attend(
                mine.queries, window, step.window_bias, extra, w.attention
            )
            heads[rows] = taken[: step.count]
        return self.close_together(streams, entry, heads, w, rotation, joint.ids, joint.count)

    def open_together(
        self, streams: Tensor, w: BlockWeights, rotation: Rotation
    ) -> tuple[Entry, Projected]:
        """`open` for the rows of several sequences."""
        return self._open_block(streams, w, rotation)

    def close_together(
        self,
        streams: Tensor,
        entry: Entry,
        heads: Tensor,
        w: BlockWeights,
        rotation: Rotation,
        ids: Tensor,
        count: int,
    ) -> Tensor:
        """`close` for the rows of several sequences, each of whose `heads` have attended."""
        mixed = self.attention.merge(heads, w.attention, rotation, streams.dtype)
        given = None if w.moe.experts_by_token is None else w.moe.experts_by_token[ids]
        real = 0 if self.config.moe == "dense" else count
        return self._end_block(streams, entry, mixed, w, given, real, True)

    def logits(self, forward: Forward, *, last: bool = False) -> Tensor:
        """Next-token logits, float32, of every real row [count, vocab] or the last [1, vocab]."""
        streams = forward.streams
        if last:
            streams = streams[forward.count - 1 : forward.count]
        scores: Tensor = self._head(streams)
        return scores if last else scores[: forward.count]

    def _head_scores(self, streams: Tensor) -> Tensor:
        w = self.weights
        hidden = self.residual.collapse(streams, w.hc_head)
        return linear(normalise(hidden, w.norm, self.geometry.rms_norm_eps), w.head).float()
