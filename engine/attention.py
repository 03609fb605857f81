"""The attention sublayer: projections, the window, and the sum over window and compressed rows.

A query of a window-only layer sees its window; a compressed layer adds the rows that
`engine.compression` keeps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engine.compression import Compressed, Compression
from engine.config import EngineConfig
from engine.geometry import Geometry
from engine.numerics import Numerics
from engine.piece import Piece
from engine.step import Rotation, Step, turn
from engine.weights import AttentionWeights
from kernels.oracle import attention
from kernels.oracle.norm import rms_norm

_QUERY_BLOCK = 128  # prefill queries that attend at once


class Projected(NamedTuple):
    """What the input of the sublayer is turned into."""

    latent: Tensor  # [rows, q_lora_rank], shared with the indexer
    queries: Tensor  # [rows, heads, head_dim], normalised and rotated
    row: Tensor  # [rows, head_dim], key and value as stored


class Attention:
    """The sublayer for one geometry and configuration; state comes with the step."""

    def __init__(self, geometry: Geometry, numerics: Numerics, config: EngineConfig) -> None:
        self._g = geometry
        self._numerics = numerics
        self._joined = config.attention == "joined"
        self._scale = geometry.head_dim**-0.5
        self._compression = Compression(geometry, numerics)
        compiled = config.compile == "pieces"
        self._project = Piece(self._projection, compiled=compiled)
        self._finish = Piece(self._sum_and_output, compiled=compiled)

    def __call__(
        self, x: Tensor, w: AttentionWeights, layer: int, ratio: int, step: Step
    ) -> Tensor:
        """`x` [rows, hidden] -> [rows, hidden]; writes the step's rows into its state."""
        rotation = step.compressed if ratio else step.plain
        projected = self.project(x, w, rotation)
        window = self._write_window(projected.row, layer, step)
        extra = None
        if ratio:
            extra = self._compression(x, projected.latent, w, layer, ratio, step)
        if step.short:
            return self.finish(projected.queries, window, step.window_mask, extra, w, rotation)
        return self._finish_blocks(projected.queries, window, extra, w, rotation, step)

    # ---------------------------------------------------------------- projections

    def project(self, x: Tensor, w: AttentionWeights, rotation: Rotation) -> Projected:
        """Queries and the key/value row of `x` [rows, hidden]."""
        return Projected(
            *self._project(x, w.wq_a, w.q_norm, w.wq_b, w.wkv, w.kv_norm, *rotation)
        )

    def _projection(
        self,
        x: Tensor,
        wq_a: Tensor,
        q_norm: Tensor,
        wq_b: Tensor,
        wkv: Tensor,
        kv_norm: Tensor,
        cos: Tensor,
        sin: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        eps, product = self._g.rms_norm_eps, self._numerics.product
        latent = rms_norm(product(x, wq_a), q_norm, eps)
        queries = product(latent, wq_b).unflatten(-1, (-1, self._g.head_dim))
        queries = turn(rms_norm(queries, None, eps), cos, sin)
        row = turn(rms_norm(product(x, wkv), kv_norm, eps), cos, sin)
        return latent, queries, self._numerics.row(row, self._g.qk_rope_head_dim)

    # ---------------------------------------------------------------- window

    def _write_window(self, row: Tensor, layer: int, step: Step) -> Tensor:
        """Store the real rows; return the window keys of the step, float32 [keys, head_dim]."""
        state, ring = step.state, step.state.window[layer]
        stored = state.row_format.encode(row[: step.count])
        if step.short:
            ring.index_copy_(0, step.window_slots, stored)
            return state.row_format.decode(ring)
        first = step.start - self._g.sliding_window + 1
        past = torch.arange(first, step.start, device=row.device) % state.window_ring
        keys = torch.cat((ring.index_select(0, past), stored))
        tail = min(step.count, state.window_ring)
        ring.index_copy_(0, step.window_slots[-tail:], stored[-tail:])
        return state.row_format.decode(keys)

    # ---------------------------------------------------------------- the sum over keys

    def finish(
        self,
        queries: Tensor,
        window: Tensor,
        mask: Tensor,
        extra: Compressed | None,
        w: AttentionWeights,
        rotation: Rotation,
    ) -> Tensor:
        """Attend over `window` [keys, head_dim] and `extra`, then project back to [rows, hidden]."""
        rows = None if extra is None else extra.rows
        if extra is not None:
            mask = torch.cat((mask, extra.mask), -1)
        return self._finish(queries, window, mask, rows, w.sink, w.wo_a, w.wo_b, *rotation)

    def _finish_blocks(
        self,
        queries: Tensor,
        window: Tensor,
        extra: Compressed | None,
        w: AttentionWeights,
        rotation: Rotation,
        step: Step,
    ) -> Tensor:
        """`finish` for a long step, whose queries see only the keys of their own stretch."""
        reach = self._g.sliding_window - 1
        parts = []
        for first in range(0, step.rows, _QUERY_BLOCK):
            rows = slice(first, min(first + _QUERY_BLOCK, step.rows))
            keys = slice(first, rows.stop + reach)
            near = None if extra is None else extra.of(rows)
            mask = step.window_mask[rows, :, keys]
            turned = Rotation(rotation.cos[rows], rotation.sin[rows])
            parts.append(self.finish(queries[rows], window[keys], mask, near, w, turned))
        return torch.cat(parts)

    def _sum_and_output(
        self,
        queries: Tensor,
        window: Tensor,
        mask: Tensor,
        extra: Tensor | None,
        sink: Tensor,
        wo_a: Tensor,
        wo_b: Tensor,
        cos: Tensor,
        sin: Tensor,
    ) -> Tensor:
        heads = self._sum(queries, window, mask, extra, sink)
        groups = turn(heads, cos, sin, inverse=True).flatten(1).unflatten(1, (self._g.o_groups, -1))
        mixed = torch.bmm(groups.transpose(0, 1), wo_a.transpose(1, 2))
        return self._numerics.product(mixed.transpose(0, 1).flatten(1), wo_b)

    def _sum(
        self, queries: Tensor, window: Tensor, mask: Tensor, extra: Tensor | None, sink: Tensor
    ) -> Tensor:
        if extra is None:
            return attention.attend(queries, window, mask, sink, self._scale)
        if self._joined:
            if extra.dim() == 3:
                window = window.expand(queries.shape[0], -1, -1)
            rows = torch.cat((window, extra), -2)
            return attention.attend(queries, rows, mask, sink, self._scale)
        q = queries.float()
        scores = torch.cat((q @ window.t(), q @ extra.transpose(-1, -2)), -1) * self._scale
        share = attention.weights(scores, mask, sink)
        near, far = share.split((window.shape[0], extra.shape[-2]), -1)
        return (near @ window + far @ extra).to(queries.dtype)
