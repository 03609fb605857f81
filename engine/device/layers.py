"""The launches of a forward: one layer after another, for a step of few rows or a prompt's chunk.

A sublayer's output stays in parts until the launch that writes it to the streams, which also reads
the next sublayer's input: so the first product of a sublayer is the first that it launches itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.device.operations import Operations
from engine.device.side import Side
from engine.device.state import Store
from engine.device.tables import Tables, Turn
from engine.device.weights import (
    Attention,
    Block,
    Compressor,
    Experts,
    Hyper,
    Moe,
    Quantised,
    Weights,
)
from engine.geometry import Geometry
from kernels import packed
from kernels.mxfp4 import Bank
from kernels.packed import Rows
from kernels.pool import Pool

INDEXED = 4  # the ratio of layers whose indexer chooses among their compressed rows
_BUCKET = 512  # compressed rows of a chunk are read in whole buckets, so that few sizes occur


class Ran(NamedTuple):
    """What a forward leaves."""

    vector: Tensor  # [rows, hidden], the collapsed streams
    x: Tensor  # the same, normalised: what the output head reads
    taps: Tensor  # [rows, taps * hidden], what the draft head knows of the rows


class Carried(NamedTuple):
    """Between sublayers: streams as they were read, and how the next output is written."""

    streams: Tensor
    x: Tensor
    post: Tensor
    comb: Tensor


class Layers:
    """One model in one kind of numbers; sequences come with the calls."""

    def __init__(
        self,
        geometry: Geometry,
        weights: Weights,
        operations: Operations,
        tables: Tables,
        *,
        dtype: torch.dtype,
        rounds: bool,
        shared_expert: str = "experts",
    ) -> None:
        self.geometry = geometry
        self.weights = weights
        self.operations = operations
        self.tables = tables
        self.dtype = dtype
        self.rounds = rounds
        self.shared_expert = shared_expert
        self._side = Side(weights.embed.device)
        g = geometry
        self._mixing = {
            "iterations": g.hc_sinkhorn_iters, "norm_eps": g.rms_norm_eps, "eps": g.hc_eps
        }  # fmt: skip

    # ---------------------------------------------------------------- streams

    def start(self, ids: Tensor, first: Hyper) -> Carried:
        """Streams of the token `ids` int64 [m], read by the sublayer of `first`."""
        embedded = self.weights.embed[ids].to(self.dtype)
        streams = embedded[:, None].expand(-1, self.geometry.hc_mult, -1).contiguous()
        entry = self.operations.hyper.enter(
            streams, first.fn, first.base, first.scale, first.norm, **self._mixing
        )
        return Carried(streams, entry.x, entry.post, entry.comb)

    def advance(
        self, carried: Carried, output: Tensor, w: Hyper, taps: Tensor | None = None
    ) -> Carried:
        """Write a sublayer's `output`, whole or in parts, and read the next one's input."""
        streams, entry = self.operations.hyper.advance(
            carried.streams, output, carried.post, carried.comb,
            w.fn, w.base, w.scale, w.norm, **self._mixing, taps=taps,
        )  # fmt: skip
        return Carried(streams, entry.x, entry.post, entry.comb)

    def finish(
        self, carried: Carried, output: Tensor, w: Hyper, taps: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Write the last `output`; the collapsed streams, before and after the norm."""
        g = self.geometry
        _, vector, x = self.operations.hyper.finish(
            carried.streams, output, carried.post, carried.comb,
            w.fn, w.base, w.scale, w.norm, norm_eps=g.rms_norm_eps, eps=g.hc_eps, taps=taps,
        )  # fmt: skip
        return vector, x

    def forward(self, ids: Tensor, store: Store, chunk: Chunk | None = None) -> Ran:
        """Run the token `ids` int64 [m] at the store's position and on, leaving their rows there.

        Up to eight rows are a step; a `chunk` of a prompt has any number.
        """
        w, wanted = self.weights, self.geometry.dspark_target_layer_ids
        m, d = ids.shape[0], self.geometry.hidden_size
        taps = torch.empty((m, len(wanted), d), dtype=self.dtype, device=ids.device)
        carried = self.start(ids, w.layers[0].hc_attn)
        for layer, block in enumerate(w.layers):
            output = self._attend(carried.x, block, layer, store, chunk)
            carried = self.advance(carried, output, block.hc_ffn)
            parts = self.moe(carried.x, block.moe, ids, many=chunk is not None)
            tap = taps[:, wanted.index(layer)] if layer in wanted else None
            if layer + 1 < len(w.layers):
                carried = self.advance(carried, parts, w.layers[layer + 1].hc_attn, tap)
        vector, x = self.finish(carried, parts, w.hc_head, tap)
        return Ran(vector, x, taps.flatten(1))

    # ---------------------------------------------------------------- attention

    def _attend(
        self, x: Tensor, block: Block, layer: int, store: Store, chunk: Chunk | None
    ) -> Tensor:
        w, turn = block.attention, self.turn(block)
        pools = self._pools(w, block.ratio, layer, store)
        if chunk is not None:
            return self._attend_chunk(x, block, layer, store, pools, chunk)
        op, g, at = self.operations, self.geometry, store.position
        window = store.named["window"][layer]
        y8, y16 = op.project.project(x, w.down.codes, w.down.scale, w.side)
        latents = op.intake.store(
            y8, y16 if pools else None, w.q_norm, w.kv_norm, *turn, at, window, pools,
            eps=g.rms_norm_eps, rounds=self.rounds,
        )  # fmt: skip
        queries = self._queries(latents, w, turn, at, pools)
        rows, chosen = None, None
        if pools:
            rows = pools[0].rows
        if w.indexer is not None:
            chosen = op.indexer.choose(
                queries.indexer, pools[1].rows, y16[:, -g.index_n_heads :], at,
                ratio=block.ratio, count=g.index_topk,
            )  # fmt: skip
        heads = op.attention.attend(
            queries.main, window, rows, chosen, w.sink, *turn, at,
            window=g.sliding_window, ratio=block.ratio, scale=g.head_dim**-0.5,
        )  # fmt: skip
        return self.merge(heads, w)

    def _attend_chunk(
        self,
        x: Tensor,
        block: Block,
        layer: int,
        store: Store,
        pools: Sequence[Pool],
        chunk: Chunk,
    ) -> Tensor:
        op, g, at, w = self.operations, self.geometry, store.position, block.attention
        turn = self.turn(block)
        window = store.named["window"][layer]
        y8 = op.fp8_linear.multiply(x, w.down.codes, w.down.scale)
        y16 = None if w.side is None else wide_product(x, w.side)
        latents, keys = op.passage.store(
            y8, y16, w.q_norm, w.kv_norm, *turn, at, window, pools,
            reach=g.sliding_window - 1, eps=g.rms_norm_eps, rounds=self.rounds,
        )  # fmt: skip
        queries = self._queries(latents, w, turn, at, ())
        rows, chosen = None, None
        if pools:
            rows = chunk.visible(pools[0].rows, block.ratio)
        if w.indexer is not None:
            assert y16 is not None
            chosen = op.indexer.choose(
                queries.indexer, chunk.visible(pools[1].rows, block.ratio),
                y16[:, -g.index_n_heads :], at, ratio=block.ratio, count=g.index_topk,
            )  # fmt: skip
        heads = op.attention.attend_long(
            queries.main, keys, rows, chosen, w.sink, *turn, at,
            window=g.sliding_window, ratio=block.ratio, scale=g.head_dim**-0.5,
        )  # fmt: skip
        return self.merge(heads, w)

    def _queries(
        self, latents: Tensor, w: Attention, turn: Turn, at: Tensor, pools: Sequence[Pool]
    ) -> Queries:
        g, op = self.geometry, self.operations
        y = op.fp8_linear.multiply(latents, w.up.codes, w.up.scale)
        return op.heads.prepare(
            y, *turn, at, pools, heads=g.num_attention_heads, head_dim=g.head_dim,
            index_dim=g.index_head_dim if w.indexer is not None else 0,
            eps=g.rms_norm_eps, rounds=self.rounds,
        )  # fmt: skip

    def merge(self, heads: Tensor, w: Attention) -> Tensor:
        """What the `heads` [m, heads, head_dim] took, projected to [m, hidden]."""
        op, groups = self.operations, self.geometry.o_groups
        mixed = op.fp8_linear.multiply(heads.flatten(1), w.wo_a.codes, w.wo_a.scale, groups=groups)
        return op.fp8_linear.multiply(mixed, w.wo_b.codes, w.wo_b.scale)

    def turn(self, block: Block) -> Turn:
        """The rotation of a block's queries and keys."""
        return self.tables.compressed if block.ratio else self.tables.plain

    def _pools(self, w: Attention, ratio: int, layer: int, store: Store) -> tuple[Pool, ...]:
        """The layer's compressor and its indexer's, with what they hold of the sequence."""
        named = ((f"rows.{ratio}", w.compressor), (f"keys.{ratio}", w.indexer))
        return tuple(_pool(store, name, c, layer) for name, c in named if c is not None)

    # ---------------------------------------------------------------- experts

    def moe(self, x: Tensor, w: Moe, ids: Tensor, *, many: bool) -> Tensor:
        """Float32 parts [m, k + 1, hidden] of the routed experts and the shared one."""
        g, op = self.geometry, self.operations
        chosen, share, begun = self._route_many(x, w, ids) if many else self._route(x, w, ids)
        moe = op.moe_prefill if many else op.moe
        more = {"routes": moe.plan(chosen, g.n_routed_experts)} if many else {}
        shared_in, shared_out = w.shared_w13, w.shared_w2
        hidden = moe.gate_up(
            x, chosen, share, *_operands(w.w13), shared_in.codes, shared_in.scale,
            limit=g.swiglu_limit, **more, **({} if begun is None else {"begun": begun}),
        )  # fmt: skip
        self._side.join()
        return moe.down(
            hidden, chosen, *_operands(w.w2), shared_out.codes, shared_out.scale, **more
        )

    def _route(self, x: Tensor, w: Moe, ids: Tensor) -> Routed:
        """A step's routes, and the shared expert's hidden rows if they are made beside."""
        g, op, shared = self.geometry, self.operations, w.shared_w13
        given = (x, w.gate, w.bias, None if w.table is None else ids, w.table)
        named = {"count": g.num_experts_per_tok, "scale": g.routed_scaling_factor}
        if self.shared_expert == "router":
            return Routed(*op.beside.route(
                *given, shared.codes, shared.scale, limit=g.swiglu_limit, **named
            ))  # fmt: skip
        begun = None
        if self.shared_expert == "stream":
            with self._side.fork():
                begun = op.moe.begin(
                    x, shared.codes, shared.scale,
                    slots=g.num_experts_per_tok, limit=g.swiglu_limit,
                )  # fmt: skip
        chosen, weights = op.router.route(*given, **named)
        return Routed(chosen, weights, begun)

    def _route_many(self, x: Tensor, w: Moe, ids: Tensor) -> Routed:
        """The routes of a chunk's rows."""
        router, g = self.operations.router, self.geometry
        logits, scale = wide_product(x, w.gate), g.routed_scaling_factor
        if w.table is not None:
            chosen, weights = router.look_up(logits, ids, w.table, scale=scale)
        else:
            chosen, weights = router.choose(logits, w.bias, g.num_experts_per_tok, scale=scale)
        return Routed(chosen, weights)


class Routed(NamedTuple):
    """Experts [m, k] of each row, their weights, and hidden rows that the shared one has begun."""

    chosen: Tensor
    weights: Tensor
    begun: Tensor | None = None


class Queries(NamedTuple):
    """As `heads.prepare` returns them."""

    main: Tensor
    indexer: Tensor | None


class Chunk(NamedTuple):
    """Rows of a prompt that run at once, as the host knows them."""

    start: int
    rows: int

    def visible(self, rows: Rows, ratio: int) -> Rows:
        """The compressed `rows` [capacity, d] that the chunk's queries may see, and some more."""
        seen = (self.start + self.rows) // ratio
        count = -(-max(seen, 1) // _BUCKET) * _BUCKET
        return packed.first(rows, min(packed.capacity(rows), count))


def _operands(experts: Experts) -> tuple[Tensor, Tensor] | tuple[Bank]:
    """What an operation takes for them: codes and scales as stored, or a kernel's bank."""
    if isinstance(experts, Quantised):
        return experts.codes, experts.scale
    return (experts,)


def wide_product(x: Tensor, weight: Tensor) -> Tensor:
    """`x` [m, k] times BF16 `weight` [n, k], accumulated and left in float32."""
    if x.dtype == weight.dtype and x.is_cuda:
        return torch.mm(x, weight.t(), out_dtype=torch.float32)
    return x.float() @ weight.float().t()


def _pool(store: Store, name: str, w: Compressor, layer: int) -> Pool:
    held = store.pools[name]
    inputs = held.inputs[held.layers.index(layer)]
    return Pool(w.ape, w.norm, inputs, held.rows(layer))
