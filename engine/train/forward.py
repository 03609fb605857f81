"""Full-sequence forward of backbone and draft head over assembled weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, pad

from engine.geometry import Geometry
from engine.train.frame import Frame, Frames
from engine.train.sublayer import Sublayers, select
from engine.weights import BlockWeights, Weights
from kernels.oracle import hyper
from kernels.oracle.norm import rms_norm
from kernels.oracle.rotary import table


@dataclass(frozen=True, slots=True)
class Trace:
    """What the backbone computed for ids [B, T]."""

    hidden: Tensor  # [B, T, d] after the final norm: the input of the output head
    taps: Tensor  # [B, T, taps d]
    loads: list[Tensor]  # per layer, how many tokens chose each expert [experts]
    divergence: Tensor  # mean over indexers of their divergence from the attention, nats


@dataclass(frozen=True, slots=True)
class Blocks:
    """What the draft head computed for A anchors a sequence and S slots an anchor."""

    hidden: Tensor  # [B, A, S, d] before the head's norm
    base: Tensor  # float32 [B, A, S, vocab] without the Markov bias


class Forward:
    """Runs a geometry on one device. With `compiled`, sublayers are compiled once per shape.

    `rounding` is the design's numerics `cache` (straight-through), else `exact`.
    """

    def __init__(
        self, geometry: Geometry, device: torch.device, *, rounding: bool, compiled: bool = False
    ) -> None:
        self.g = geometry
        self.frames = Frames(geometry, device)
        self._plain = Sublayers(geometry, rounding=rounding)

        def unit(function: Callable[..., Any]) -> Callable[..., Any]:
            return torch.compile(function, dynamic=False) if compiled else function

        self._enter = unit(self._plain.enter)
        self._leave = unit(self._plain.leave) if compiled else hyper.write
        self._attend = unit(self._plain.attend)
        self._index = unit(self._plain.index)
        self._mixture = unit(self._plain.mixture)

    def run(
        self, weights: Weights, ids: Tensor, starts: Tensor | None = None, *, sparse: bool = True
    ) -> Trace:
        """The backbone over `ids` int64 [B, T], any T.

        `starts` [B, T] is the position where each token's document began (0 when None): nothing
        before it is seen. Without `sparse`, the indexer is trained but selects nothing.
        """
        g, length = self.g, ids.shape[1]
        extra = -length % g.sliding_window
        starts = torch.zeros_like(ids) if starts is None else starts
        frame = self.frames.make(pad(starts, (0, extra)))
        ids = pad(ids, (0, extra))
        streams = self._spread(embedding(ids, weights.embed))
        taps, loads = [], []
        losses: list[Tensor] = []
        for i, block in enumerate(weights.layers):
            streams, load = self._block(streams, block, ids, frame, losses, sparse=sparse)
            loads.append(load)
            if i in g.dspark_target_layer_ids:
                taps.append(streams.float().mean(-2).to(streams.dtype)[:, :length])
        hidden = rms_norm(
            self._collapse(streams[:, :length], weights.hc_head), weights.norm, g.rms_norm_eps
        )
        divergence = torch.stack(losses).mean() if losses else hidden.new_zeros(())
        return Trace(hidden, torch.cat(taps, -1), loads, divergence)

    def logits(self, weights: Weights, hidden: Tensor) -> Tensor:
        """Float32 next-token logits of `hidden` [..., d]."""
        return linear(hidden, weights.head).float()

    def draft(
        self,
        weights: Weights,
        taps: Tensor,
        ids: Tensor,
        anchors: Tensor,
        starts: Tensor | None = None,
    ) -> Blocks:
        """One parallel pass of the draft head from each of `anchors` [B, A].

        An anchor is the last position whose `taps` [B, T, taps d] exist; the token after it,
        `ids` [B, T + 1 or less], fills slot 0 and noise the others. `starts` [B, T] as in `run`.
        """
        g, w = self.g, weights.draft
        slots = torch.arange(g.dspark_block_size, device=ids.device)
        main = rms_norm(linear(taps, w.main_proj), w.main_norm, g.rms_norm_eps)
        window = anchors[..., None] + torch.arange(1 - g.sliding_window, 1, device=ids.device)
        first = torch.zeros_like(anchors) if starts is None else starts.gather(1, anchors)
        seen = pad(window >= first[..., None], (0, g.dspark_block_size), value=True)
        window = window.clamp_min(0)
        at = table(anchors[..., None] + 1 + slots, self.frames.plain)
        context_at = table(torch.arange(taps.shape[1], device=ids.device), self.frames.plain)
        tokens = torch.full_like(window[..., : len(slots)], g.dspark_noise_token_id)
        tokens = torch.cat((ids.gather(1, anchors + 1)[..., None], tokens[..., 1:]), -1)
        streams = self._spread(embedding(tokens, weights.embed))
        # Rows are looked up in those of all sequences: the gradient of `embedding` is summed faster
        # than that of an index, and to the same bits.
        first_rows = torch.arange(ids.shape[0], device=ids.device) * taps.shape[1]
        window = window + first_rows[:, None, None]
        for stage in w.stages:
            x, post, comb = self._plain.enter(streams, stage.hc_attn, stage.attn_norm)
            known = self._plain.rows(main, stage.attention, context_at)
            context = embedding(window, known.flatten(0, 1))
            own = self._plain.rows(x, stage.attention, at)
            rows = torch.cat((context, own), -2)  # [B, A, W + S, hd]
            queries = self._plain.queries(x, stage.attention, at)
            scores = (queries.flatten(2, 3) @ rows.transpose(-1, -2)).float() * g.head_dim**-0.5
            scores = scores.unflatten(2, (len(slots), -1))  # [B, A, S, h, W + S]
            scores = scores.masked_fill(~seen[:, :, None, None], float("-inf"))
            mass = torch.logaddexp(scores.logsumexp(-1), stage.attention.sink)
            share = torch.exp(scores - mass[..., None]).to(rows.dtype)
            heads = (share.flatten(2, 3) @ rows).view_as(queries)
            y = self._plain.output(heads, stage.attention, at)
            streams = hyper.write(streams, y, post, comb)
            x, post, comb = self._plain.enter(streams, stage.hc_ffn, stage.ffn_norm)
            y, _ = self._plain.mixture(x, stage.moe, tokens)
            streams = hyper.write(streams, y, post, comb)
        hidden = self._collapse(streams, w.hc_head)
        base = self.logits(weights, rms_norm(hidden, w.norm, g.rms_norm_eps))
        return Blocks(hidden, base)

    def _block(
        self,
        streams: Tensor,
        w: BlockWeights,
        ids: Tensor,
        frame: Frame,
        losses: list[Tensor],
        *,
        sparse: bool,
    ) -> tuple[Tensor, Tensor]:
        x, post, comb = self._enter(streams, w.hc_attn, w.attn_norm)
        angles = frame.scaled if w.ratio else frame.plain
        far, rows, index = frame.far.get(w.ratio), frame.rows.get(w.ratio), None
        if far is not None and not far.shape[-1]:
            far, rows = None, None
        if far is not None and rows is not None and w.attention.indexer is not None:
            indexer = w.attention.indexer
            index = self._index(x, w.attention, indexer, angles, rows, frame.rotation)
            far = select(index, far, self.g.index_topk) if sparse else far
        y, loss = self._attend(x, w.attention, angles, rows, frame.near, far, index)
        if index is not None:
            losses.append(loss)
        streams = self._leave(streams, y, post, comb)
        x, post, comb = self._enter(streams, w.hc_ffn, w.ffn_norm)
        y, load = self._mixture(x, w.moe, ids)
        return self._leave(streams, y, post, comb), load

    def _spread(self, x: Tensor) -> Tensor:
        return x[..., None, :].expand(*x.shape[:-1], self.g.hc_mult, -1).contiguous()

    def _collapse(self, streams: Tensor, w: Any) -> Tensor:
        return hyper.collapse(
            streams, w.fn, w.base, w.scale, norm_eps=self.g.rms_norm_eps, eps=self.g.hc_eps
        )


def markov(weights: Weights, previous: Tensor) -> tuple[Tensor, Tensor]:
    """Bias float32 [..., vocab] and embedding [..., rank] of the `previous` tokens [...]."""
    embedded = embedding(previous, weights.draft.markov_w1)
    return linear(embedded, weights.draft.markov_w2).float(), embedded


def confidence(weights: Weights, hidden: Tensor, embedded: Tensor) -> Tensor:
    """Logit, float32 [...], that the draft of a slot survives given that all earlier ones did."""
    both = torch.cat((hidden, embedded), -1).float()
    return linear(both, weights.draft.confidence.float()).squeeze(-1)


def greedy(weights: Weights, blocks: Blocks, bonus: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Draft ids [..., S + 1] after `bonus` [...], logits [..., S, vocab], trust logits [..., S]."""
    ids, logits, trust = [bonus], [], []
    for slot in range(blocks.base.shape[-2]):
        bias, embedded = markov(weights, ids[-1])
        logits.append(blocks.base[..., slot, :] + bias)
        trust.append(confidence(weights, blocks.hidden[..., slot, :], embedded))
        ids.append(logits[-1].argmax(-1))
    return torch.stack(ids, -1), torch.stack(logits, -2), torch.stack(trust, -1)
