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
from engine.norm import normalise
from engine.numerics import Numerics
from engine.ring import read_ring, write_ring
from engine.state import Pool
from engine.step import Step, bias
from engine.weights import AttentionWeights, CompressorWeights, IndexerWeights, by_column
from kernels.oracle import compressor


class Compressed(NamedTuple):
    """Compressed keys of a step: shared [k, d] or a set a query [rows, k, d], and their bias."""

    rows: Tensor
    bias: Tensor  # [rows, 1, k], added to scores

    def of(self, queries: slice) -> Compressed:
        """The keys of some of the queries."""
        rows = self.rows[queries] if self.rows.dim() == 3 else self.rows
        return Compressed(rows, self.bias[queries])


class Compression:
    """Takes in the rows of a step and returns the compressed keys that its queries see."""

    def __init__(self, geometry: Geometry, numerics: Numerics) -> None:
        self._g = geometry
        self._numerics = numerics
        self._joined: dict[int, Tensor] = {}  # wkv over wgate, by compressor
        self._index_scale = torch.tensor((geometry.index_head_dim * geometry.index_n_heads) ** -0.5)

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
            row = self._numerics.row_(pooled, self._g.qk_rope_head_dim)
            self._append(pool, slot, step, step.state.row_format.encode(row))
        if w.indexer is not None:
            return self._indexed(x, latent, w.indexer, pool, slot, step)
        size = pool.bucketed(step.last)
        seen = torch.arange(size, device=x.device) < step.windows(ratio)
        rows = step.state.row_format.decode(pool.rows[slot, :size])
        return Compressed(rows, bias(seen)[:, None, :])

    def _pool(
        self, x: Tensor, w: CompressorWeights, pool: Pool, slot: int, step: Step
    ) -> Tensor | None:
        """Take in the step's rows; return pooled, rotated rows of the windows they complete."""
        ratio, count, ring = pool.ratio, step.count, pool.inputs[slot]
        inputs = linear(x, self._join(w))[:count].float()
        first, stop = step.start // ratio, (step.start + count) // ratio
        pooled = None
        if stop > first:
            held = read_ring(ring, (first - pool.overlapping) * ratio, step.start)
            whole = torch.cat((held, inputs[: stop * ratio - step.start]))
            pooled = self._pooled(whole.unflatten(0, (-1, ratio)), w, pool, first)
            turn = step.all_compressed.of(slice(first * ratio, stop * ratio, ratio))
            pooled = turn.turn_(pooled[:, None]).squeeze(1)
        tail = min(count, pool.ring)
        write_ring(ring, step.start + count - tail, inputs[count - tail :])
        return pooled

    def _pooled(self, inputs: Tensor, w: CompressorWeights, pool: Pool, first: int) -> Tensor:
        """Normalised rows of the whole windows `inputs` [windows, ratio, 2 width]."""
        values, gates = inputs.chunk(2, -1)
        gates = gates + w.ape
        if pool.overlapping:
            if first == 0:
                gates[:1] = -torch.inf
            values, gates = compressor.overlap(values), compressor.overlap(gates)
        return normalise(compressor.pool(values, gates), w.norm, self._g.rms_norm_eps)

    def _join(self, w: CompressorWeights) -> Tensor:
        found = self._joined.get(id(w))
        if found is None:
            found = self._joined[id(w)] = by_column(torch.cat((w.wkv, w.wgate)))
        return found

    @staticmethod
    def _append(pool: Pool, slot: int, step: Step, rows: Tensor) -> None:
        first = step.start // pool.ratio
        pool.rows[slot, first : first + rows.shape[0]] = rows

    def _indexed(
        self, x: Tensor, latent: Tensor, w: IndexerWeights, pool: Pool, slot: int, step: Step
    ) -> Compressed:
        """The rows that the indexer selects, one set a query."""
        keys = step.state.pools["keys.4"]
        pooled = self._pool(x, w.compressor, keys, slot, step)
        if pooled is not None:
            self._append(keys, slot, step, self._numerics.index(pooled))
        visible = step.windows(pool.ratio)
        if (step.start + step.rows) // pool.ratio <= self._g.index_topk:
            count = min(self._g.index_topk, pool.rows.shape[1])
            seen = torch.arange(count, device=x.device) < visible
            rows = step.state.row_format.decode(pool.rows[slot, :count])
            return Compressed(rows.expand(step.rows, -1, -1), bias(seen)[:, None, :])
        chosen = self._select(self._score(x, latent, w, keys, slot, step), visible)
        rows = pool.rows[slot].index_select(0, chosen.flatten()).unflatten(0, chosen.shape)
        return Compressed(step.state.row_format.decode(rows), bias(chosen < visible)[:, None, :])

    def _score(
        self, x: Tensor, latent: Tensor, w: IndexerWeights, keys: Pool, slot: int, step: Step
    ) -> Tensor:
        """Scores [rows, windows] of `kernels.oracle.indexer`."""
        queries = self._numerics.product(latent, w.wq_b)
        queries = queries.unflatten(-1, (-1, self._g.index_head_dim))
        queries = self._numerics.index(step.compressed.turn_(queries)).float()
        weights = linear(x, w.weights_proj) * self._index_scale
        rows = keys.rows[slot, : keys.bucketed(step.last)]
        dots = (queries.flatten(0, 1) @ rows.t()).relu_().unflatten(0, (-1, queries.shape[1]))
        return torch.bmm(weights.float()[:, None], dots).squeeze(1)

    def _select(self, score: Tensor, visible: Tensor) -> Tensor:
        """The best visible rows [rows, k] of a query, in ascending order (oracle `select`).

        Of equal scores the lower row wins, on every device.
        """
        unseen = torch.arange(score.shape[1], device=score.device) >= visible
        count = min(self._g.index_topk, score.shape[1])
        best = score.masked_fill_(unseen, -torch.inf).topk(count, -1, sorted=False)
        chosen, least = best.indices, best.values.amin(-1, keepdim=True)
        more = (score >= least).sum(-1, keepdim=True) > count
        if (more & (least > -torch.inf)).any():  # topk does not say which of equal rows it takes
            chosen = score.sort(dim=-1, descending=True, stable=True).indices[:, :count]
        return chosen.sort(-1).values
