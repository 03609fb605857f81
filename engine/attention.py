"""The attention sublayer: window rows, compressed rows, the indexer that picks among them.

A query of a window-only layer sees its window; a compressed layer adds rows pooled from whole
windows of 4 (those the indexer selects) or more tokens (all of them).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from engine.geometry import Geometry
from engine.numerics import Numerics
from engine.state import Pool
from engine.step import Rotation, Step
from engine.weights import AttentionWeights, CompressorWeights
from kernels.oracle import attention, compressor, indexer
from kernels.oracle.norm import rms_norm

_QUERY_BLOCK = 128  # prefill queries that attend at once


@dataclass(frozen=True, slots=True)
class Compressed:
    """Compressed keys of a step: shared [k, d] or a set a query [rows, k, d], and the mask."""

    rows: Tensor
    mask: Tensor  # [rows, 1, k]


class Attention:
    """The sublayer for one geometry and configuration; state comes with the step."""

    def __init__(self, geometry: Geometry, numerics: Numerics, *, joined: bool) -> None:
        self._g = geometry
        self._numerics = numerics
        self._joined = joined
        self._scale = geometry.head_dim**-0.5

    def __call__(
        self, x: Tensor, w: AttentionWeights, layer: int, ratio: int, step: Step
    ) -> Tensor:
        """`x` [rows, hidden] -> [rows, hidden]; writes the step's rows into its state."""
        rotation = step.compressed if ratio else step.plain
        latent = self.latent(x, w)
        queries = self.queries(latent, w, rotation)
        row = self.row(x, w, rotation)
        window = self._write_window(row, layer, step)
        extra = self._compressed(x, latent, w, layer, ratio, step) if ratio else None
        return self.output(self._attend(queries, window, extra, w.sink, step), w, rotation)

    # ---------------------------------------------------------------- projections

    def latent(self, x: Tensor, w: AttentionWeights) -> Tensor:
        """Low-rank query input [rows, q_lora_rank], shared with the indexer."""
        return rms_norm(self._numerics.product(x, w.wq_a), w.q_norm, self._g.rms_norm_eps)

    def queries(self, latent: Tensor, w: AttentionWeights, rotation: Rotation) -> Tensor:
        """Normalised, rotated queries [rows, heads, head_dim]."""
        q = self._numerics.product(latent, w.wq_b).unflatten(-1, (-1, self._g.head_dim))
        return rotation.turn(rms_norm(q, None, self._g.rms_norm_eps))

    def row(self, x: Tensor, w: AttentionWeights, rotation: Rotation) -> Tensor:
        """The key/value row [rows, head_dim] as it is stored."""
        row = rms_norm(self._numerics.product(x, w.wkv), w.kv_norm, self._g.rms_norm_eps)
        return self._numerics.row(rotation.turn(row), self._g.qk_rope_head_dim)

    def output(self, heads: Tensor, w: AttentionWeights, rotation: Rotation) -> Tensor:
        """Undo the rotation of the values, then the grouped low-rank projection."""
        groups = rotation.turn(heads, inverse=True).flatten(1).unflatten(1, (self._g.o_groups, -1))
        mixed = torch.bmm(groups.transpose(0, 1), w.wo_a.transpose(1, 2))
        return self._numerics.product(mixed.transpose(0, 1).flatten(1), w.wo_b)

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

    # ---------------------------------------------------------------- compressed rows

    def _compressed(
        self,
        x: Tensor,
        latent: Tensor,
        w: AttentionWeights,
        layer: int,
        ratio: int,
        step: Step,
    ) -> Compressed:
        assert w.compressor is not None
        pool = step.state.pools[f"rows.{ratio}"]
        slot = pool.layers.index(layer)
        pooled = self._pool(x, w.compressor, pool, slot, step)
        if pooled is not None:
            row = self._numerics.row(pooled, self._g.qk_rope_head_dim)
            self._append(pool, slot, step, step.state.row_format.encode(row))
        if w.indexer is not None:
            return self._indexed(x, latent, w, pool, slot, step)
        size = pool.bucketed(step.last)
        rows = step.state.row_format.decode(pool.rows[slot, :size])
        visible = (step.positions + 1) // ratio
        seen = torch.arange(size, device=x.device) < visible[:, None]
        return Compressed(rows, seen[:, None, :])

    def _pool(
        self, x: Tensor, w: CompressorWeights, pool: Pool, slot: int, step: Step
    ) -> Tensor | None:
        """Take in the step's rows; return pooled, rotated rows of the windows they complete."""
        ratio, count = pool.ratio, step.count
        values = linear(x, w.wkv)[:count].float()
        gates = linear(x, w.wgate)[:count].float() + w.ape[step.positions[:count] % ratio]
        first, stop = step.start // ratio, (step.start + count) // ratio
        pooled = None
        if stop > first:
            held = range((first - pool.overlapping) * ratio, step.start)
            past = torch.arange(held.start, held.stop, device=x.device) % pool.ring
            used = stop * ratio - step.start
            windows = (-1, ratio)
            v = torch.cat((pool.values[slot, past], values[:used])).unflatten(0, windows)
            g = torch.cat((pool.gates[slot, past], gates[:used])).unflatten(0, windows)
            if pool.overlapping:
                if first == 0:
                    g = torch.cat((torch.full_like(g[:1], float("-inf")), g[1:]))
                v, g = compressor.overlap(v), compressor.overlap(g)
            row = rms_norm(compressor.pool(v, g), w.norm, self._g.rms_norm_eps)
            pooled = step.all_compressed.strided(first * ratio, stop * ratio, ratio).turn(row)
        tail = min(count, pool.ring)
        slots = step.positions[count - tail : count] % pool.ring
        pool.values[slot].index_copy_(0, slots, values[-tail:])
        pool.gates[slot].index_copy_(0, slots, gates[-tail:])
        return pooled

    @staticmethod
    def _append(pool: Pool, slot: int, step: Step, rows: Tensor) -> None:
        first = step.start // pool.ratio
        pool.rows[slot, first : first + rows.shape[0]] = rows

    def _indexed(
        self, x: Tensor, latent: Tensor, w: AttentionWeights, pool: Pool, slot: int, step: Step
    ) -> Compressed:
        """The rows that the indexer selects, one set a query."""
        assert w.indexer is not None
        g = self._g
        keys = step.state.pools["keys.4"]
        pooled = self._pool(x, w.indexer.compressor, keys, slot, step)
        if pooled is not None:
            self._append(keys, slot, step, self._numerics.index(pooled))
        visible = ((step.positions + 1) // pool.ratio)[:, None]
        most = (step.start + step.rows) // pool.ratio
        if most <= g.index_topk:
            chosen = torch.arange(g.index_topk, device=x.device).expand(step.rows, -1)
            seen = chosen < visible
        else:
            q = self._numerics.product(latent, w.indexer.wq_b).unflatten(-1, (-1, g.index_head_dim))
            q = self._numerics.index(step.compressed.turn(q))
            weights = (
                linear(x, w.indexer.weights_proj) * (g.index_head_dim * g.index_n_heads) ** -0.5
            )
            size = keys.bucketed(step.last)
            score = indexer.scores(q, keys.rows[slot, :size], weights)
            chosen, seen = indexer.select(score, visible, g.index_topk)
        rows = pool.rows[slot].index_select(0, chosen.flatten()).unflatten(0, chosen.shape)
        return Compressed(step.state.row_format.decode(rows), seen[:, None, :])

    # ---------------------------------------------------------------- the sum over keys

    def _attend(
        self,
        queries: Tensor,
        window: Tensor,
        extra: Compressed | None,
        sink: Tensor,
        step: Step,
    ) -> Tensor:
        if step.short:
            return self._sum(queries, window, step.window_mask, extra, sink)
        reach = self._g.sliding_window - 1
        parts = []
        for first in range(0, step.rows, _QUERY_BLOCK):
            stop = min(first + _QUERY_BLOCK, step.rows)
            rows = slice(first, stop)
            keys = slice(first, stop + reach)
            near = extra and Compressed(
                extra.rows[rows] if extra.rows.dim() == 3 else extra.rows, extra.mask[rows]
            )
            parts.append(
                self._sum(queries[rows], window[keys], step.window_mask[rows, :, keys], near, sink)
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
