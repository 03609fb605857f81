"""The sublayers of a block over whole sequences: differentiable, batched, made for compilation.

Same mathematics as the oracles; where this page has its own form, a test compares the two. The
attention works on blocks of one window, so that its cost grows linearly with the length, and folds
the sink into the normaliser: exp(s - log(sum exp(s) + exp(sink))).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear, log_softmax, pad

from engine.geometry import Geometry
from engine.train.chosen import combined
from engine.train.frame import Angles
from engine.train.sinkhorn import balanced
from engine.weights import (
    AttentionWeights,
    CompressorWeights,
    HyperWeights,
    IndexerWeights,
    MoeWeights,
)
from kernels.oracle import compressor, moe
from kernels.oracle.norm import rms_norm
from kernels.oracle.rotary import rotate
from kernels.oracle.rounding import cache_round, fp4_round

_HIDDEN = -1e9  # a score that no visible row has; finite, so that an empty set stays finite


def straight_through(x: Tensor, rounded: Tensor) -> Tensor:
    """The value of `rounded` with the gradient of `x`."""
    return rounded.detach() + (x - x.detach())


class Sublayers:
    """The compute of one geometry; `rounding` switches cache and indexer rounding on."""

    def __init__(self, geometry: Geometry, *, rounding: bool) -> None:
        self.g = geometry
        self.rounding = rounding

    def enter(
        self, streams: Tensor, hyper: HyperWeights, norm: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Normalised sublayer input [..., d]; for `leave`: post [..., m] and comb [..., m, m]."""
        g, m = self.g, self.g.hc_mult
        flat = streams.flatten(-2).float()
        size = torch.rsqrt(flat.square().mean(-1, keepdim=True) + g.rms_norm_eps)
        raw = linear(flat, hyper.fn) * size
        pre = torch.sigmoid(raw[..., :m] * hyper.scale[0] + hyper.base[:m]) + g.hc_eps
        post = 2.0 * torch.sigmoid(raw[..., m : 2 * m] * hyper.scale[1] + hyper.base[m : 2 * m])
        logits = raw[..., 2 * m :] * hyper.scale[2] + hyper.base[2 * m :]
        comb = balanced(logits.unflatten(-1, (m, m)), g.hc_sinkhorn_iters, g.hc_eps)
        mixed = (pre[..., None] * flat.unflatten(-1, (m, -1))).sum(-2).to(streams.dtype)
        return rms_norm(mixed, norm, g.rms_norm_eps), post, comb

    def leave(self, streams: Tensor, output: Tensor, post: Tensor, comb: Tensor) -> Tensor:
        """`hyper.write` as multiply-adds, which a compiler fuses into one pass over the streams."""
        mixed = (comb[..., None] * streams.float().unsqueeze(-2)).sum(-3)
        return (mixed + post[..., None] * output.float()[..., None, :]).to(streams.dtype)

    def queries(self, x: Tensor, w: AttentionWeights, angles: Angles) -> Tensor:
        """Rotated queries [..., h, hd] of `x` [..., d]."""
        g = self.g
        latent = rms_norm(linear(x, w.wq_a), w.q_norm, g.rms_norm_eps)
        heads = linear(latent, w.wq_b).unflatten(-1, (g.num_attention_heads, g.head_dim))
        cos, sin = angles
        return rotate(rms_norm(heads, None, g.rms_norm_eps), cos[..., None, :], sin[..., None, :])

    def rows(self, x: Tensor, w: AttentionWeights, angles: Angles) -> Tensor:
        """Key/value rows [..., hd] of `x` [..., d], as a cache would hold them."""
        row = rotate(rms_norm(linear(x, w.wkv), w.kv_norm, self.g.rms_norm_eps), *angles)
        return self._cached(row)

    def output(self, heads: Tensor, w: AttentionWeights, angles: Angles) -> Tensor:
        """Sublayer output [..., d] of the attended `heads` [..., h, hd]."""
        cos, sin = angles
        heads = rotate(heads, cos[..., None, :], sin[..., None, :], inverse=True)
        groups = heads.flatten(-2).unflatten(-1, (self.g.o_groups, -1))
        latent = torch.einsum("...gi,gri->...gr", groups, w.wo_a)
        return linear(latent.flatten(-2), w.wo_b)

    def attend(
        self,
        x: Tensor,
        w: AttentionWeights,
        angles: Angles,
        row_angles: Angles | None,
        near: Tensor,
        far: Tensor | None,
        index: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Attention of `x` [B, T, d] over the window and the compressed rows in `far` [B, T, R].

        Returns the output and the mean divergence (nats) of the indexer's scores `index` [B, T, R]
        from where the heads looked, zero without an indexer.
        """
        g = self.g
        width, hd = g.sliding_window, g.head_dim
        queries = self.queries(x, w, angles)
        blocks = self.rows(x, w, angles).unflatten(1, (-1, width))
        local = torch.cat((pad(blocks, (0, 0, 0, 0, 1, 0))[:, :-1], blocks), 2)  # [B, n, 2W, hd]
        grouped = queries.unflatten(1, (-1, width)).flatten(2, 3)  # [B, n, W h, hd]
        scores = (grouped @ local.transpose(-1, -2)).float().unflatten(2, (width, -1))
        scores = scores.masked_fill(~near, float("-inf")).flatten(1, 2)  # [B, T, h, 2W]
        pieces = [scores * hd**-0.5]
        distant: Tensor | None = None
        if far is not None and w.compressor is not None and row_angles is not None:
            distant = self._cached(self.compress(x, w.compressor, row_angles))
            more = (queries.flatten(1, 2) @ distant.transpose(-1, -2)).float()
            more = more.unflatten(1, (-1, g.num_attention_heads)) * hd**-0.5
            pieces.append(more.masked_fill(~far[:, :, None], float("-inf")))
        scores = torch.cat(pieces, -1)
        mass = torch.logaddexp(scores.logsumexp(-1), w.sink)
        share = torch.exp(scores - mass[..., None])
        inner = share[..., : 2 * width].to(x.dtype)
        heads = (inner.unflatten(1, (-1, width)).flatten(2, 3) @ local).view_as(queries)
        loss = x.new_zeros((), dtype=torch.float32)
        if distant is not None and far is not None:
            outer = share[..., 2 * width :]
            heads = heads + (outer.to(x.dtype).flatten(1, 2) @ distant).view_as(queries)
            if index is not None:
                loss = _divergence(outer.detach().sum(2), index, far)
        return self.output(heads, w, angles), loss

    def compress(self, x: Tensor, w: CompressorWeights, angles: Angles) -> Tensor:
        """Compressed rows [B, R, width] of `x` [B, T, d], rotated to the start of their window."""
        ratio = w.ape.shape[0]
        whole = x[:, : x.shape[1] // ratio * ratio].float()
        values = linear(whole, w.wkv.float()).unflatten(1, (-1, ratio))
        gates = linear(whole, w.wgate.float()).unflatten(1, (-1, ratio)) + w.ape
        if w.ape.shape[1] != w.norm.shape[0]:
            before = (0, 0, 0, 0, 1, 0)
            values = compressor.overlap(pad(values, before))
            gates = compressor.overlap(pad(gates, before, value=float("-inf")))
        row = compressor.pool(values, gates).to(x.dtype)
        return rotate(rms_norm(row, w.norm, self.g.rms_norm_eps), *angles)

    def index(
        self,
        x: Tensor,
        w: AttentionWeights,
        indexer: IndexerWeights,
        angles: Angles,
        row_angles: Angles,
        rotation: Tensor,
    ) -> Tensor:
        """Indexer scores, float32 [B, T, R]. Only the indexer's own weights receive a gradient."""
        g, x = self.g, x.detach()
        latent = rms_norm(linear(x, w.wq_a.detach()), w.q_norm.detach(), g.rms_norm_eps)
        heads = linear(latent, indexer.wq_b).unflatten(-1, (g.index_n_heads, g.index_head_dim))
        cos, sin = angles
        heads = self._turned(rotate(heads, cos[..., None, :], sin[..., None, :]), rotation)
        keys = self._turned(self.compress(x, indexer.compressor, row_angles), rotation)
        share = linear(x, indexer.weights_proj).float()
        share = share * (g.index_head_dim * g.index_n_heads) ** -0.5
        dots = (heads.flatten(1, 2) @ keys.transpose(-1, -2)).float()
        dots = torch.relu(dots).unflatten(1, (-1, g.index_n_heads))
        return (dots * share[..., None]).sum(2)

    def mixture(self, x: Tensor, w: MoeWeights, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Experts on `x` [..., d] for tokens `ids` [...]; also each one's load [experts].

        Packed experts are taken as frozen, and only the chosen ones computed.
        """
        g = self.g
        flat = x.flatten(0, -2)
        scores = moe.affinity(linear(flat.float(), w.gate.float()))
        if w.experts_by_token is not None:
            chosen = w.experts_by_token[ids.flatten()]
        else:
            assert w.bias is not None
            chosen = moe.choose(scores, w.bias, g.num_experts_per_tok)
        shares = moe.route(scores, chosen, g.routed_scaling_factor)
        dense = moe.spread(chosen, shares, g.n_routed_experts)
        if w.scales is not None:
            routed = combined(flat, chosen, shares, w, g.swiglu_limit)
        else:
            routed = self._every(flat, dense, w)
        shared = moe.expert(flat, w.shared_w1, w.shared_w3, w.shared_w2, g.swiglu_limit)
        return (routed + shared).view_as(x), (dense.detach() > 0).float().sum(0)

    def _every(self, flat: Tensor, dense: Tensor, w: MoeWeights) -> Tensor:
        """Every expert on the rows `flat` [r, d], weighted by `dense` [r, experts]."""
        wide = moe.swiglu(
            linear(flat, w.w1.flatten(0, 1)), linear(flat, w.w3.flatten(0, 1)), self.g.swiglu_limit
        )
        wide = (wide.unflatten(-1, (self.g.n_routed_experts, -1)) * dense[..., None]).flatten(1)
        return wide.to(flat.dtype) @ w.w2.transpose(1, 2).flatten(0, 1)

    def _cached(self, row: Tensor) -> Tensor:
        if not self.rounding:
            return row
        return straight_through(row, cache_round(row.detach(), self.g.qk_rope_head_dim))

    def _turned(self, x: Tensor, rotation: Tensor) -> Tensor:
        turned = x @ rotation.to(x.dtype)
        return straight_through(turned, fp4_round(turned.detach())) if self.rounding else turned


def select(scores: Tensor, far: Tensor, count: int) -> Tensor:
    """`far` [B, T, R] narrowed to the `count` best-scored rows of each query."""
    if scores.shape[-1] <= count:
        return far
    best = scores.detach().masked_fill(~far, float("-inf")).topk(count, -1).indices
    return torch.zeros_like(far).scatter_(-1, best, True) & far


def _divergence(mass: Tensor, scores: Tensor, far: Tensor) -> Tensor:
    """Mean over queries of KL(mass over rows || softmax of scores), both over the rows in `far`."""
    target = mass / mass.sum(-1, keepdim=True).clamp_min(1e-20)
    guess = log_softmax(scores.masked_fill(~far, _HIDDEN), -1)
    each = (torch.xlogy(target, target) - target * guess).sum(-1)
    return each.mean()
