"""Compressed rows of a sequence: pooled from whole windows of tokens, picked by the indexer.

Layers of ratio 4 pool overlapping windows and attend to the rows that their indexer selects; layers
of a larger ratio attend to all of theirs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from engine.geometry import Geometry
from engine.numerics import Numerics
from engine.state import Pool
from engine.step import Step
from engine.weights import AttentionWeights, CompressorWeights
from kernels.oracle import compressor, indexer
from kernels.oracle.norm import rms_norm


class Compressed(NamedTuple):
    """Compressed keys of a step: shared [k, d] or a set a query [rows, k, d], and the mask."""

    rows: Tensor
    mask: Tensor  # [rows, 1, k]

    def of(self, queries: slice) -> Compressed:
        """The keys of some of the queries."""
        rows = self.rows[queries] if self.rows.dim() == 3 else self.rows
        return Compressed(rows, self.mask[queries])


class Compression:
    """Takes in the rows of a step and returns the compressed keys that its queries see."""

    def __init__(self, geometry: Geometry, numerics: Numerics) -> None:
        self._g = geometry
        self._numerics = numerics

    def __call__(
        self, x: Tensor, latent: Tensor, w: AttentionWeights, layer: int, step: Step
    ) -> Compressed:
        """`x` [rows, hidden] and the query `latent` of a layer that compresses."""
        assert w.compressor is not None
        ratio = w.compressor.ape.shape[0]
        pool = step.state.pools[f"rows.{ratio}"]
        slot = pool.layers.index(layer)
        pooled = self._pool(x, w.compressor, pool, slot, step)
        if pooled is not None:
            row = self._numerics.row(pooled, self._g.qk_rope_head_dim)
            self._append(pool, slot, step, step.state.row_format.encode(row))
        if w.indexer is not None:
            return self._indexed(x, latent, w, pool, slot, step)
        size = pool.bucketed(step.last)
        visible = (step.positions + 1) // ratio
        seen = torch.arange(size, device=x.device) < visible[:, None]
        rows = step.state.row_format.decode(pool.rows[slot, :size])
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
            held = torch.arange((first - pool.overlapping) * ratio, step.start, device=x.device)
            past = held % pool.ring
            used = stop * ratio - step.start
            v = torch.cat((pool.values[slot, past], values[:used])).unflatten(0, (-1, ratio))
            g = torch.cat((pool.gates[slot, past], gates[:used])).unflatten(0, (-1, ratio))
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
        if (step.start + step.rows) // pool.ratio <= g.index_topk:
            chosen = torch.arange(g.index_topk, device=x.device).expand(step.rows, -1)
            seen = chosen < visible
        else:
            q = self._numerics.product(latent, w.indexer.wq_b)
            q = step.compressed.turn(q.unflatten(-1, (-1, g.index_head_dim)))
            scale = (g.index_head_dim * g.index_n_heads) ** -0.5
            weights = linear(x, w.indexer.weights_proj) * scale
            size = keys.bucketed(step.last)
            score = indexer.scores(self._numerics.index(q), keys.rows[slot, :size], weights)
            chosen, seen = indexer.select(score, visible, g.index_topk)
        rows = pool.rows[slot].index_select(0, chosen.flatten()).unflatten(0, chosen.shape)
        return Compressed(step.state.row_format.decode(rows), seen[:, None, :])
