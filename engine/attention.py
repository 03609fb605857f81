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
from engine.step import Rotation, Step
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
        self.compression = Compression(geometry, numerics)

    def gather(
        self, x: Tensor, projected: Projected, w: AttentionWeights, layer: int, step: Step
    ) -> tuple[Tensor, Compressed | None]:
        """Write the step's rows into its state; the window and compressed keys it attends to."""
        window = self._write_window(projected.row, layer, step)
        if w.compressor is None:
            return window, None
        return window, self.compression(x, projected.latent, w, layer, step)

    # ---------------------------------------------------------------- projections

    def project(self, x: Tensor, w: AttentionWeights, rotation: Rotation) -> Projected:
        """Queries and the key/value row of `x` [rows, hidden]."""
        eps, product = self._g.rms_norm_eps, self._numerics.product
        latent = rms_norm(product(x, w.wq_a), w.q_norm, eps)
        queries = product(latent, w.wq_b).unflatten(-1, (-1, self._g.head_dim))
        queries = rotation.turn(rms_norm(queries, None, eps))
        row = rotation.turn(rms_norm(product(x, w.wkv), w.kv_norm, eps))
        return Projected(latent, queries, self._numerics.row(row, self._g.qk_rope_head_dim))

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
        """Attend over `window` [keys, head_dim] and `extra`, and project to [rows, hidden]."""
        heads = self._sum(queries, window, mask, extra, w.sink)
        groups = rotation.turn(heads, inverse=True).flatten(1).unflatten(1, (self._g.o_groups, -1))
        mixed = torch.bmm(groups.transpose(0, 1), w.wo_a.transpose(1, 2))
        return self._numerics.product(mixed.transpose(0, 1).flatten(1), w.wo_b)

    def finish_long(
        self,
        queries: Tensor,
        window: Tensor,
        mask: Tensor,
        extra: Compressed | None,
        w: AttentionWeights,
        rotation: Rotation,
    ) -> Tensor:
        """`finish` for a long step, whose queries see only the keys of their own stretch."""
        reach = self._g.sliding_window - 1
        parts = []
        for first in range(0, queries.shape[0], _QUERY_BLOCK):
            rows = slice(first, min(first + _QUERY_BLOCK, queries.shape[0]))
            keys = slice(first, rows.stop + reach)
            near = None if extra is None else extra.of(rows)
            turned = Rotation(rotation.cos[rows], rotation.sin[rows])
            parts.append(
                self.finish(queries[rows], window[keys], mask[rows, :, keys], near, w, turned)
            )
        return torch.cat(parts)

    def _sum(
        self,
        queries: Tensor,
        window: Tensor,
        mask: Tensor,
        extra: Compressed | None,
        sink: Tensor,
    ) -> Tensor:
        if extra is None:
            return attention.attend(queries, window, mask, sink, self._scale)
        mask = torch.cat((mask, extra.mask), -1)
        if self._joined:
            if extra.rows.dim() == 3:
                window = window.expand(queries.shape[0], -1, -1)
            rows = torch.cat((window, extra.rows), -2)
            return attention.attend(queries, rows, mask, sink, self._scale)
        q = queries.float()
        scores = torch.cat((q @ window.t(), q @ extra.rows.transpose(-1, -2)), -1) * self._scale
        share = attention.weights(scores, mask, sink)
        near, far = share.split((window.shape[0], extra.rows.shape[-2]), -1)
        return (near @ window + far @ extra.rows).to(queries.dtype)
