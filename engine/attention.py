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
from engine.norm import normalise
from engine.numerics import Numerics
from engine.ring import read_ring, write_ring
from engine.step import Rotation, Step
from engine.weights import AttentionWeights, by_column

_QUERY_BLOCK = 128  # prefill queries that attend at once


class Projected(NamedTuple):
    """What the input of the sublayer is turned into."""

    latent: Tensor  # [rows, q_lora_rank], shared with the indexer
    queries: Tensor  # [rows, heads, head_dim], normalised, rotated and scaled
    row: Tensor  # [rows, head_dim], key and value as stored


class Joined(NamedTuple):
    """Constants of a layer: what reads the same input as one matrix, and the norms of its rows."""

    down: Tensor  # [q_lora_rank + head_dim, hidden]: wq_a over wkv
    norms: Tensor  # [heads + 1, head_dim]: the score's scale for each head, then kv_norm
    sink: Tensor  # [heads, 1]


class Attention:
    """The sublayer for one geometry and configuration; state comes with the step."""

    def __init__(self, geometry: Geometry, numerics: Numerics, config: EngineConfig) -> None:
        self._g = geometry
        self._numerics = numerics
        self._joined = config.attention == "joined"
        self._constants: dict[int, Joined] = {}
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
        """Queries and the key/value row of `x` [rows, hidden].

        The row is one more head until it is stored: both are normalised and rotated alike.
        """
        g, product = self._g, self._numerics.product
        joined = self._join(w)
        latent, row = product(x, joined.down).split((g.q_lora_rank, g.head_dim), -1)
        latent = normalise(latent, w.q_norm, g.rms_norm_eps)
        heads = torch.cat((product(latent, w.wq_b), row), -1).unflatten(-1, (-1, g.head_dim))
        heads = rotation.turn_(normalise(heads, joined.norms, g.rms_norm_eps))
        row = self._numerics.row_(heads[:, -1], g.qk_rope_head_dim)
        return Projected(latent, heads[:, :-1], row)

    def prepare(self, w: AttentionWeights) -> None:
        """Make now what `project` keeps of `w`: code compiled before it is there is made twice."""
        self._join(w)

    def _join(self, w: AttentionWeights) -> Joined:
        found = self._constants.get(id(w))
        if found is None:
            scale = w.kv_norm.new_full((self._g.num_attention_heads, 1), self._g.head_dim**-0.5)
            norms = torch.cat((scale.expand(-1, self._g.head_dim), w.kv_norm[None]))
            down = by_column(torch.cat((w.wq_a, w.wkv)))
            found = Joined(down, norms.float(), w.sink.float()[:, None])
            self._constants[id(w)] = found
        return found

    # ---------------------------------------------------------------- window

    def _write_window(self, row: Tensor, layer: int, step: Step) -> Tensor:
        """Store the real rows; return the window keys of the step, float32 [keys, head_dim]."""
        state, ring = step.state, step.state.window[layer]
        stored = state.row_format.encode(row[: step.count])
        if step.short:
            write_ring(ring, step.start, stored)
            return state.row_format.decode(ring)
        past = read_ring(ring, step.start - self._g.sliding_window + 1, step.start)
        keys = torch.cat((past, stored))
        tail = min(step.count, state.window_ring)
        write_ring(ring, step.start + step.count - tail, stored[step.count - tail :])
        return state.row_format.decode(keys)

    # ---------------------------------------------------------------- the sum over keys

    def finish(
        self,
        queries: Tensor,
        window: Tensor,
        bias: Tensor,
        extra: Compressed | None,
        w: AttentionWeights,
        rotation: Rotation,
    ) -> Tensor:
        """Attend over `window` [keys, head_dim] and `extra`, and project to [rows, hidden]."""
        heads = self.attend(queries, window, bias, extra, w)
        return self.merge(heads, w, rotation, queries.dtype)

    def attend(
        self,
        queries: Tensor,
        window: Tensor,
        bias: Tensor,
        extra: Compressed | None,
        w: AttentionWeights,
    ) -> Tensor:
        """What each head of `queries` [rows, heads, head_dim] takes from the keys; float32."""
        sum_ = self._sum_joined if self._joined else self._sum_apart
        return sum_(queries.float(), window, bias, extra, self._join(w).sink)

    def merge(
        self, heads: Tensor, w: AttentionWeights, rotation: Rotation, dtype: torch.dtype
    ) -> Tensor:
        """Project what the heads took (overwriting it) to [rows, hidden] of `dtype`."""
        heads = rotation.turn_(heads, inverse=True).to(dtype)
        groups = heads.flatten(1).unflatten(1, (self._g.o_groups, -1))
        mixed = torch.bmm(groups.transpose(0, 1), w.wo_a.transpose(1, 2))
        return self._numerics.product(mixed.transpose(0, 1).flatten(1), w.wo_b)

    def finish_long(
        self,
        queries: Tensor,
        window: Tensor,
        bias: Tensor,
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
            near_bias = bias[rows, :, keys]
            parts.append(
                self.finish(queries[rows], window[keys], near_bias, near, w, rotation.of(rows))
            )
        return torch.cat(parts)

    def _sum_apart(
        self, queries: Tensor, window: Tensor, bias: Tensor, extra: Compressed | None, sink: Tensor
    ) -> Tensor:
        """Scores of window and compressed keys apart, one softmax, and two sums."""
        count, heads, dim = queries.shape
        near = (queries.reshape(-1, dim) @ window.t()).view(count, heads, -1).add_(bias)
        scores = [sink.expand(count, -1, 1), near]
        if extra is not None:
            scores.append((queries @ extra.rows.transpose(-1, -2)).add_(extra.bias))
        share = torch.cat(scores, -1).softmax(-1)
        first = 1 + window.shape[0]
        total = (share.flatten(0, 1)[:, 1:first] @ window).view(count, heads, dim)
        return total if extra is None else total.add_(share[..., first:] @ extra.rows)

    def _sum_joined(
        self, queries: Tensor, window: Tensor, bias: Tensor, extra: Compressed | None, sink: Tensor
    ) -> Tensor:
        """All keys of a query gathered into one matrix."""
        if extra is not None:
            if extra.rows.dim() == 3:
                window = window.expand(queries.shape[0], -1, -1)
            window = torch.cat((window, extra.rows), -2)
            bias = torch.cat((bias, extra.bias), -1)
        scores = (queries @ window.transpose(-1, -2)).add_(bias)
        share = torch.cat((sink.expand(queries.shape[0], -1, 1), scores), -1).softmax(-1)
        return share[..., 1:] @ window
