"""The model's tensors as typed groups, assembled from the checkpoint's own names.

`assemble` takes any mapping of native names to tensors that are ready for arithmetic (loaded and
decoded, or a trainer's parameters) and takes every one of them exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from engine.errors import CheckpointError
from engine.formats import FP4_GROUP
from engine.geometry import Geometry


@dataclass(frozen=True, slots=True)
class HyperWeights:
    fn: Tensor  # [(2 + m) m, m d], or [m, m d] for the head
    base: Tensor
    scale: Tensor


@dataclass(frozen=True, slots=True)
class CompressorWeights:
    wkv: Tensor  # [width, d]
    wgate: Tensor  # [width, d]
    ape: Tensor  # [ratio, width]
    norm: Tensor


@dataclass(frozen=True, slots=True)
class IndexerWeights:
    wq_b: Tensor
    weights_proj: Tensor
    compressor: CompressorWeights


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    wq_a: Tensor
    q_norm: Tensor
    wq_b: Tensor
    wkv: Tensor
    kv_norm: Tensor
    wo_a: Tensor  # [groups, rank, heads per group * head_dim]
    wo_b: Tensor
    sink: Tensor
    compressor: CompressorWeights | None
    indexer: IndexerWeights | None


@dataclass(frozen=True, slots=True)
class ExpertScales:
    """E8M0 exponents of routed experts that are held as packed MXFP4."""

    w1: Tensor  # [experts, i, d / 32]
    w3: Tensor
    w2: Tensor  # [experts, d, i / 32]


@dataclass(frozen=True, slots=True)
class MoeWeights:
    gate: Tensor  # [experts, d]
    bias: Tensor | None  # [experts]; None on hash-routed layers
    experts_by_token: Tensor | None  # [vocab, k]; only on hash-routed layers
    w1: Tensor  # [experts, i, d], or with `scales` packed E2M1 [experts, i, d / 2]
    w3: Tensor
    w2: Tensor  # [experts, d, i], or with `scales` packed E2M1 [experts, d, i / 2]
    shared_w1: Tensor
    shared_w3: Tensor
    shared_w2: Tensor
    scales: ExpertScales | None = None


@dataclass(frozen=True, slots=True)
class BlockWeights:
    attn_norm: Tensor
    ffn_norm: Tensor
    hc_attn: HyperWeights
    hc_ffn: HyperWeights
    attention: AttentionWeights
    moe: MoeWeights
    ratio: int


@dataclass(frozen=True, slots=True)
class DraftWeights:
    """The DSpark head; it shares embedding and output head with the backbone."""

    main_proj: Tensor
    main_norm: Tensor
    stages: tuple[BlockWeights, ...]
    norm: Tensor
    hc_head: HyperWeights
    markov_w1: Tensor  # [vocab, rank]
    markov_w2: Tensor  # [vocab, rank]
    confidence: Tensor  # [1, d + rank]


@dataclass(frozen=True, slots=True)
class Weights:
    embed: Tensor
    layers: tuple[BlockWeights, ...]
    norm: Tensor
    hc_head: HyperWeights
    head: Tensor
    draft: DraftWeights

    def size(self) -> dict[str, int]:
        """`tensors` and `weights_bytes` held in memory."""
        held = list(_tensors(self))
        return {
            "tensors": len(held),
            "weights_bytes": sum(t.numel() * t.element_size() for t in held),
        }


def _tensors(group: object) -> Iterator[Tensor]:
    if isinstance(group, Tensor):
        yield group
    elif isinstance(group, tuple):
        for item in group:
            yield from _tensors(item)
    elif is_dataclass(group):
        for field in fields(group):
            yield from _tensors(getattr(group, field.name))


_Group = TypeVar("_Group")
_READ_BY_ROW = frozenset({"embed", "experts_by_token", "markov_w1", "ape"})


def laid_out(group: _Group) -> _Group:
    """`group` with every matrix that enters a product stored column by column.

    Shapes stay; a product of few rows then streams its matrix in order, a third faster.
    """
    changed: dict[str, Any] = {}
    for field in fields(group):  # type: ignore[arg-type]
        value = getattr(group, field.name)
        if is_dataclass(value):
            changed[field.name] = laid_out(value)
        elif isinstance(value, tuple):
            changed[field.name] = tuple(laid_out(item) for item in value)
        elif isinstance(value, Tensor) and value.dim() > 1 and field.name not in _READ_BY_ROW:
            changed[field.name] = by_column(value)
    return replace(group, **changed)  # type: ignore[type-var]


def by_column(matrix: Tensor) -> Tensor:
    """A copy of `matrix` [..., n, k] whose columns are contiguous."""
    return matrix.transpose(-2, -1).contiguous().transpose(-2, -1)


class _Claims:
    """Hands each tensor out once and knows what is left."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._left = dict(tensors)

    def take(self, name: str, *shape: int) -> Tensor:
        tensor = self._left.pop(name, None)
        if tensor is None:
            raise CheckpointError(f"The checkpoint lacks the tensor {name}.")
        if tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"The tensor {name} has shape {tuple(tensor.shape)}; config.json implies {shape}."
            )
        return tensor

    def has(self, name: str) -> bool:
        return name in self._left

    def finish(self) -> None:
        if self._left:
            names = sorted(self._left)
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise CheckpointError(
                "The checkpoint holds tensors this model does not use: "
                f"{', '.join(names[:3])}{more}."
            )


def assemble(tensors: Mapping[str, Tensor], geometry: Geometry) -> Weights:
    """Group `tensors` by native name; a missing, misshapen or unused one is an error naming it."""
    g, claims = geometry, _Claims(tensors)
    weights = Weights(
        embed=claims.take("embed.weight", g.vocab_size, g.hidden_size),
        layers=tuple(
            _block(claims, g, f"layers.{i}.", ratio, hashed=i < g.num_hash_layers)
            for i, ratio in enumerate(g.layer_ratios)
        ),
        norm=claims.take("norm.weight", g.hidden_size),
        hc_head=_hyper_head(claims, g, "hc_head_"),
        head=claims.take("head.weight", g.vocab_size, g.hidden_size),
        draft=_draft(claims, g),
    )
    claims.finish()
    return weights


def assemble_draft(tensors: Mapping[str, Tensor], geometry: Geometry) -> DraftWeights:
    """Group the `mtp.*` tensors of a draft head alone; errors as in `assemble`.

    A stage's experts may also come as one stack under the name of all of them (`*` for the expert),
    which is then taken as it is: decoded, or packed with its scales beside it.
    """
    claims = _Claims(tensors)
    draft = _draft(claims, geometry)
    claims.finish()
    return draft


def _draft(claims: _Claims, g: Geometry) -> DraftWeights:
    last = f"mtp.{g.draft_stages - 1}."
    taps = len(g.dspark_target_layer_ids) * g.hidden_size
    rank = g.dspark_markov_rank
    return DraftWeights(
        main_proj=claims.take("mtp.0.main_proj.weight", g.hidden_size, taps),
        main_norm=claims.take("mtp.0.main_norm.weight", g.hidden_size),
        stages=tuple(
            _block(claims, g, f"mtp.{s}.", 0, hashed=False) for s in range(g.draft_stages)
        ),
        norm=claims.take(last + "norm.weight", g.hidden_size),
        hc_head=_hyper_head(claims, g, last + "hc_head_"),
        markov_w1=claims.take(last + "markov_head.markov_w1.weight", g.vocab_size, rank),
        markov_w2=claims.take(last + "markov_head.markov_w2.weight", g.vocab_size, rank),
        confidence=claims.take(last + "confidence_head.proj.weight", 1, g.hidden_size + rank),
    )


def _block(claims: _Claims, g: Geometry, prefix: str, ratio: int, *, hashed: bool) -> BlockWeights:
    return BlockWeights(
        attn_norm=claims.take(prefix + "attn_norm.weight", g.hidden_size),
        ffn_norm=claims.take(prefix + "ffn_norm.weight", g.hidden_size),
        hc_attn=_hyper(claims, g, prefix + "hc_attn_"),
        hc_ffn=_hyper(claims, g, prefix + "hc_ffn_"),
        attention=_attention(claims, g, prefix + "attn.", ratio),
        moe=_moe(claims, g, prefix + "ffn.", hashed=hashed),
        ratio=ratio,
    )


def _hyper(claims: _Claims, g: Geometry, prefix: str) -> HyperWeights:
    mixes = (2 + g.hc_mult) * g.hc_mult
    return HyperWeights(
        fn=claims.take(prefix + "fn", mixes, g.hc_mult * g.hidden_size),
        base=claims.take(prefix + "base", mixes),
        scale=claims.take(prefix + "scale", 3),
    )


def _hyper_head(claims: _Claims, g: Geometry, prefix: str) -> HyperWeights:
    return HyperWeights(
        fn=claims.take(prefix + "fn", g.hc_mult, g.hc_mult * g.hidden_size),
        base=claims.take(prefix + "base", g.hc_mult),
        scale=claims.take(prefix + "scale", 1),
    )


def _attention(claims: _Claims, g: Geometry, prefix: str, ratio: int) -> AttentionWeights:
    heads = g.num_attention_heads * g.head_dim
    per_group = heads // g.o_groups
    latent = g.o_groups * g.o_lora_rank
    width = (2 if ratio == 4 else 1) * g.head_dim
    return AttentionWeights(
        wq_a=claims.take(prefix + "wq_a.weight", g.q_lora_rank, g.hidden_size),
        q_norm=claims.take(prefix + "q_norm.weight", g.q_lora_rank),
        wq_b=claims.take(prefix + "wq_b.weight", heads, g.q_lora_rank),
        wkv=claims.take(prefix + "wkv.weight", g.head_dim, g.hidden_size),
        kv_norm=claims.take(prefix + "kv_norm.weight", g.head_dim),
        wo_a=claims.take(prefix + "wo_a.weight", latent, per_group).unflatten(0, (g.o_groups, -1)),
        wo_b=claims.take(prefix + "wo_b.weight", g.hidden_size, latent),
        sink=claims.take(prefix + "attn_sink", g.num_attention_heads),
        compressor=(
            _compressor(claims, g, prefix + "compressor.", ratio, width, g.head_dim)
            if ratio
            else None
        ),
        indexer=_indexer(claims, g, prefix + "indexer.") if ratio == 4 else None,
    )


def _compressor(
    claims: _Claims, g: Geometry, prefix: str, ratio: int, width: int, row: int
) -> CompressorWeights:
    return CompressorWeights(
        wkv=claims.take(prefix + "wkv.weight", width, g.hidden_size),
        wgate=claims.take(prefix + "wgate.weight", width, g.hidden_size),
        ape=claims.take(prefix + "ape", ratio, width),
        norm=claims.take(prefix + "norm.weight", row),
    )


def _indexer(claims: _Claims, g: Geometry, prefix: str) -> IndexerWeights:
    dim = g.index_head_dim
    return IndexerWeights(
        wq_b=claims.take(prefix + "wq_b.weight", g.index_n_heads * dim, g.q_lora_rank),
        weights_proj=claims.take(prefix + "weights_proj.weight", g.index_n_heads, g.hidden_size),
        compressor=_compressor(claims, g, prefix + "compressor.", 4, 2 * dim, dim),
    )


def _moe(claims: _Claims, g: Geometry, prefix: str, *, hashed: bool) -> MoeWeights:
    inner, d = g.moe_intermediate_size, g.hidden_size
    packed = claims.has(f"{prefix}experts.*.w1.scale")

    def stack(name: str, rows: int, columns: int) -> Tensor:
        whole = f"{prefix}experts.*.{name}.weight"
        if claims.has(whole):
            width = columns // 2 if packed else columns
            return claims.take(whole, g.n_routed_experts, rows, width)
        return torch.stack(
            [
                claims.take(f"{prefix}experts.{e}.{name}.weight", rows, columns)
                for e in range(g.n_routed_experts)
            ]
        )

    def scale(name: str, rows: int, columns: int) -> Tensor:
        whole = f"{prefix}experts.*.{name}.scale"
        return claims.take(whole, g.n_routed_experts, rows, columns // FP4_GROUP)

    return MoeWeights(
        gate=claims.take(prefix + "gate.weight", g.n_routed_experts, d),
        bias=None if hashed else claims.take(prefix + "gate.bias", g.n_routed_experts),
        experts_by_token=(
            claims.take(prefix + "gate.tid2eid", g.vocab_size, g.num_experts_per_tok)
            if hashed
            else None
        ),
        w1=stack("w1", inner, d),
        w3=stack("w3", inner, d),
        w2=stack("w2", d, inner),
        shared_w1=claims.take(prefix + "shared_experts.w1.weight", inner, d),
        shared_w3=claims.take(prefix + "shared_experts.w3.weight", inner, d),
        shared_w2=claims.take(prefix + "shared_experts.w2.weight", d, inner),
        scales=(
            ExpertScales(scale("w1", inner, d), scale("w3", inner, d), scale("w2", d, inner))
            if packed
            else None
        ),
    )
