"""The model's tensors on a device in the checkpoint's own formats, joined as the kernels read them.

`allocate` makes the memory and says which part of it each native tensor fills; who fills it (a
checkpoint's shards, a generator of random numbers) needs to know nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from engine.errors import ConfigError
from engine.geometry import Geometry
from kernels.mxfp4 import CHANNELS, ROWS, Bank, pack

FP8, FP4, E8M0 = torch.float8_e4m3fn, torch.int8, torch.float8_e8m0fnu
_BLOCK, _GROUP = 128, 32


@dataclass(frozen=True, slots=True)
class Quantised:
    """A matrix of narrow codes and the bytes of its power-of-two scales."""

    codes: Tensor  # E4M3 [n, k], or packed E2M1 int8 [e, n, k / 2]
    scale: Tensor  # E8M0 [ceil(n / 128), ceil(k / 128)], or [e, n, k / 32]


Experts = Quantised | Bank  # as stored, or as the kernels take them


@dataclass(frozen=True, slots=True)
class Hyper:
    """Mixing weights of one sublayer and the norm of what it reads; float32."""

    fn: Tensor
    base: Tensor
    scale: Tensor
    norm: Tensor


@dataclass(frozen=True, slots=True)
class Compressor:
    """What turns pooled inputs into rows; float32. Its matrices are rows of `Attention.side`."""

    ape: Tensor  # [ratio, width]
    norm: Tensor


@dataclass(frozen=True, slots=True)
class Attention:
    """`side` is what reads the sublayer's input in BF16: wkv and wgate of the compressor, the same
    of the indexer's, then weights_proj."""

    down: Quantised  # wq_a over wkv
    q_norm: Tensor
    up: Quantised  # wq_b over the indexer's wq_b
    kv_norm: Tensor
    wo_a: Quantised
    wo_b: Quantised
    sink: Tensor
    side: Tensor | None
    compressor: Compressor | None
    indexer: Compressor | None


@dataclass(frozen=True, slots=True)
class Moe:
    """Router, routed experts in MXFP4 and the shared one in FP8; gate rows over up rows."""

    gate: Tensor
    bias: Tensor | None
    table: Tensor | None  # int64 [vocabulary, k] of hash-routed layers
    w13: Experts
    w2: Experts
    shared_w13: Quantised
    shared_w2: Quantised


@dataclass(frozen=True, slots=True)
class Block:
    """One layer, or one stage of the draft head."""

    hc_attn: Hyper
    hc_ffn: Hyper
    attention: Attention
    moe: Moe
    ratio: int


@dataclass(frozen=True, slots=True)
class Draft:
    """The DSpark head."""

    main_proj: Quantised
    main_norm: Tensor
    context: Quantised  # wkv of every stage, one over the other
    kv_norms: Tensor  # [stages, head_dim]
    stages: tuple[Block, ...]
    hc_head: Hyper
    markov_w1: Tensor
    markov_w2: Tensor
    confidence: Tensor


@dataclass(frozen=True, slots=True)
class Weights:
    """Everything; embedding and output head in BF16."""

    embed: Tensor
    layers: tuple[Block, ...]
    hc_head: Hyper
    head: Tensor
    draft: Draft

    def size(self) -> dict[str, int]:
        """`tensors` and `weights_bytes` held in memory."""
        held = list(tensors(self))
        return {"tensors": len(held), "weights_bytes": sum(t.nbytes for t in held)}


class Place(NamedTuple):
    """Where a native tensor goes."""

    target: Tensor
    stored: torch.dtype  # on disk
    copies: tuple[Tensor, ...] = ()  # further places with the same content


Places = dict[str, Place]


def tensors(group: object) -> Iterator[Tensor]:
    """Every tensor of a group of weights and the groups inside it."""
    if isinstance(group, Tensor):
        yield group
    elif isinstance(group, tuple):
        for item in group:
            yield from tensors(item)
    elif is_dataclass(group):
        for field in fields(group):
            yield from tensors(getattr(group, field.name))


def allocate(
    geometry: Geometry, device: torch.device | str, *, banked: bool = False
) -> tuple[Weights, Places]:
    """Memory for the weights of a model and the place of each native tensor in it.

    `banked` experts are in the kernels' order at once, and so have no places of native tensors. On
    the device `meta` it costs nothing. Raises ConfigError for widths that the kernels' layout
    cannot hold.
    """
    _check(geometry)
    return _Builder(geometry, device, banked=banked).build()


def bank(weights: list[Weights]) -> None:
    """Bring the experts of the one model in `weights` to the kernels' order, in place of the model.

    Matrix after matrix, so that the memory of one more is enough; nothing else may hold the model.
    """
    model = weights.pop()
    layers, stages = list(model.layers), list(model.draft.stages)
    rest, draft = replace(model, layers=()), replace(model.draft, stages=())
    del model
    for blocks in (layers, stages):
        for i in range(len(blocks)):
            moe = blocks[i].moe
            blocks[i] = replace(blocks[i], moe=replace(moe, w13=_packed(moe.w13)))
            moe = blocks[i].moe
            blocks[i] = replace(blocks[i], moe=replace(moe, w2=_packed(moe.w2)))
    weights.append(replace(rest, layers=tuple(layers), draft=replace(draft, stages=tuple(stages))))


def _packed(experts: Experts) -> Bank:
    assert isinstance(experts, Quantised)
    return pack(experts.codes, experts.scale)


def _check(g: Geometry) -> None:
    whole = {
        "q_lora_rank": g.q_lora_rank,
        "heads x head_dim": g.num_attention_heads * g.head_dim,
        "head_dim": g.head_dim,
        "moe_intermediate_size": g.moe_intermediate_size,
    }
    for name, size in whole.items():
        if size % _BLOCK:
            raise ConfigError(
                f"The triton backend joins matrices at whole blocks of {_BLOCK} rows; {name} is "
                f"{size}. Ask for backend 'torch'."
            )


class _Builder:
    """Allocates group by group, noting places on the way."""

    def __init__(self, geometry: Geometry, device: torch.device | str, *, banked: bool) -> None:
        self._g = geometry
        self._device = device
        self._banked = banked
        self._places: Places = {}

    def build(self) -> tuple[Weights, Places]:
        g = self._g
        layers = tuple(
            self._block(f"layers.{i}.", ratio, hashed=i < g.num_hash_layers)
            for i, ratio in enumerate(g.layer_ratios)
        )
        weights = Weights(
            embed=self._plain("embed.weight", g.vocab_size, g.hidden_size),
            layers=layers,
            hc_head=self._head("", "norm.weight"),
            head=self._plain("head.weight", g.vocab_size, g.hidden_size),
            draft=self._draft(),
        )
        return weights, self._places

    # ---------------------------------------------------------------- kinds of tensors

    def _new(self, dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self._device)

    def _plain(self, name: str, *shape: int) -> Tensor:
        """BF16, as stored."""
        tensor = self._new(torch.bfloat16, *shape)
        self._places[name] = Place(tensor, torch.bfloat16)
        return tensor

    def _wide(self, name: str, *shape: int, stored: torch.dtype = torch.float32) -> Tensor:
        """Float32 in memory; norms are stored in BF16."""
        tensor = self._new(torch.float32, *shape)
        self._places[name] = Place(tensor, stored)
        return tensor

    def _norm(self, name: str, width: int) -> Tensor:
        return self._wide(name, width, stored=torch.bfloat16)

    def _fp8(self, k: int, *parts: tuple[str, int]) -> Quantised:
        """E4M3 matrices of `k` channels, one over the other: (native name, rows) of each."""
        total = sum(rows for _, rows in parts)
        whole = Quantised(
            self._new(FP8, total, k), self._new(E8M0, -(-total // _BLOCK), -(-k // _BLOCK))
        )
        first = 0
        for name, rows in parts:
            part = _rows(whole, first, rows)
            self._places[f"{name}.weight"] = Place(part.codes, FP8)
            self._places[f"{name}.scale"] = Place(part.scale, E8M0)
            first += rows
        return whole

    def _experts(self, prefix: str, k: int, *parts: tuple[str, int]) -> Experts:
        """MXFP4 matrices of every expert, the `parts` of one over each other."""
        experts, total = self._g.n_routed_experts, sum(rows for _, rows in parts)
        if self._banked:
            return empty_bank(experts, total, k, self._device)
        whole = Quantised(
            self._new(FP4, experts, total, k // 2), self._new(E8M0, experts, total, k // _GROUP)
        )
        first = 0
        for name, rows in parts:
            for e in range(experts):
                native = f"{prefix}experts.{e}.{name}"
                codes, scale = whole.codes[e].narrow(0, first, rows), whole.scale[e]
                self._places[f"{native}.weight"] = Place(codes, FP4)
                self._places[f"{native}.scale"] = Place(scale.narrow(0, first, rows), E8M0)
            first += rows
        return whole

    # ---------------------------------------------------------------- groups

    def _block(self, prefix: str, ratio: int, *, hashed: bool) -> Block:
        return Block(
            hc_attn=self._hyper(prefix, "attn"),
            hc_ffn=self._hyper(prefix, "ffn"),
            attention=self._attention(prefix + "attn.", ratio),
            moe=self._moe(prefix + "ffn.", hashed=hashed),
            ratio=ratio,
        )

    def _hyper(self, prefix: str, kind: str) -> Hyper:
        m, d = self._g.hc_mult, self._g.hidden_size
        mixes = (2 + m) * m
        return Hyper(
            fn=self._wide(f"{prefix}hc_{kind}_fn", mixes, m * d),
            base=self._wide(f"{prefix}hc_{kind}_base", mixes),
            scale=self._wide(f"{prefix}hc_{kind}_scale", 3),
            norm=self._norm(f"{prefix}{kind}_norm.weight", d),
        )

    def _head(self, prefix: str, norm: str) -> Hyper:
        m, d = self._g.hc_mult, self._g.hidden_size
        return Hyper(
            fn=self._wide(f"{prefix}hc_head_fn", m, m * d),
            base=self._wide(f"{prefix}hc_head_base", m),
            scale=self._wide(f"{prefix}hc_head_scale", 1),
            norm=self._norm(norm, d),
        )

    def _attention(self, prefix: str, ratio: int) -> Attention:
        g = self._g
        heads, latent = g.num_attention_heads * g.head_dim, g.o_groups * g.o_lora_rank
        queries = [(prefix + "wq_b", heads)]
        if ratio == 4:
            queries.append((prefix + "indexer.wq_b", g.index_n_heads * g.index_head_dim))
        return Attention(
            down=self._fp8(
                g.hidden_size, (prefix + "wq_a", g.q_lora_rank), (prefix + "wkv", g.head_dim)
            ),
            q_norm=self._norm(prefix + "q_norm.weight", g.q_lora_rank),
            up=self._fp8(g.q_lora_rank, *queries),
            kv_norm=self._norm(prefix + "kv_norm.weight", g.head_dim),
            wo_a=self._fp8(heads // g.o_groups, (prefix + "wo_a", latent)),
            wo_b=self._fp8(latent, (prefix + "wo_b", g.hidden_size)),
            sink=self._wide(prefix + "attn_sink", g.num_attention_heads),
            side=self._side(prefix, ratio),
            compressor=self._compressor(prefix, ratio, g.head_dim) if ratio else None,
            indexer=(
                self._compressor(prefix + "indexer.", ratio, g.index_head_dim)
                if ratio == 4
                else None
            ),
        )

    def _side(self, prefix: str, ratio: int) -> Tensor | None:
        g = self._g
        if not ratio:
            return None
        halves = 2 if ratio == 4 else 1
        parts = [(f"{prefix}compressor.{n}.weight", halves * g.head_dim) for n in ("wkv", "wgate")]
        if ratio == 4:
            inner = prefix + "indexer."
            parts += [
                (f"{inner}compressor.{n}.weight", halves * g.index_head_dim)
                for n in ("wkv", "wgate")
            ]
            parts.append((f"{inner}weights_proj.weight", g.index_n_heads))
        whole = self._new(torch.bfloat16, sum(rows for _, rows in parts), g.hidden_size)
        first = 0
        for name, rows in parts:
            self._places[name] = Place(whole.narrow(0, first, rows), torch.bfloat16)
            first += rows
        return whole

    def _compressor(self, prefix: str, ratio: int, dim: int) -> Compressor:
        width = dim * (2 if ratio == 4 else 1)
        return Compressor(
            ape=self._wide(prefix + "compressor.ape", ratio, width),
            norm=self._norm(prefix + "compressor.norm.weight", dim),
        )

    def _moe(self, prefix: str, *, hashed: bool) -> Moe:
        g = self._g
        inner, d = g.moe_intermediate_size, g.hidden_size
        shared = prefix + "shared_experts."
        table = None
        if hashed:
            table = self._new(torch.int64, g.vocab_size, g.num_experts_per_tok)
            self._places[prefix + "gate.tid2eid"] = Place(table, torch.int64)
        return Moe(
            gate=self._plain(prefix + "gate.weight", g.n_routed_experts, d),
            bias=None if hashed else self._wide(prefix + "gate.bias", g.n_routed_experts),
            table=table,
            w13=self._experts(prefix, d, ("w1", inner), ("w3", inner)),
            w2=self._experts(prefix, inner, ("w2", d)),
            shared_w13=self._fp8(d, (shared + "w1", inner), (shared + "w3", inner)),
            shared_w2=self._fp8(inner, (shared + "w2", d)),
        )

    def _draft(self) -> Draft:
        g = self._g
        last, rank = f"mtp.{g.draft_stages - 1}.", g.dspark_markov_rank
        taps = len(g.dspark_target_layer_ids) * g.hidden_size
        stages = tuple(self._block(f"mtp.{s}.", 0, hashed=False) for s in range(g.draft_stages))
        return Draft(
            main_proj=self._fp8(taps, ("mtp.0.main_proj", g.hidden_size)),
            main_norm=self._norm("mtp.0.main_norm.weight", g.hidden_size),
            context=self._context(),
            kv_norms=self._kv_norms(),
            stages=stages,
            hc_head=self._head(last, last + "norm.weight"),
            markov_w1=self._plain(last + "markov_head.markov_w1.weight", g.vocab_size, rank),
            markov_w2=self._plain(last + "markov_head.markov_w2.weight", g.vocab_size, rank),
            confidence=self._plain(last + "confidence_head.proj.weight", 1, g.hidden_size + rank),
        )

    def _context(self) -> Quantised:
        """A second copy of the stages' wkv, together, for what is committed."""
        g = self._g
        total = g.draft_stages * g.head_dim
        whole = Quantised(
            self._new(FP8, total, g.hidden_size),
            self._new(E8M0, total // _BLOCK, -(-g.hidden_size // _BLOCK)),
        )
        for s in range(g.draft_stages):
            part = _rows(whole, s * g.head_dim, g.head_dim)
            self._also(f"mtp.{s}.attn.wkv.weight", part.codes)
            self._also(f"mtp.{s}.attn.wkv.scale", part.scale)
        return whole

    def _kv_norms(self) -> Tensor:
        norms = self._new(torch.float32, self._g.draft_stages, self._g.head_dim)
        for s, norm in enumerate(norms):
            self._also(f"mtp.{s}.attn.kv_norm.weight", norm)
        return norms

    def _also(self, name: str, target: Tensor) -> None:
        place = self._places[name]
        self._places[name] = place._replace(copies=(*place.copies, target))


def empty_bank(experts: int, outputs: int, channels: int, device: torch.device | str) -> Bank:
    """A bank of no particular weights."""
    tiles = (experts, -(-outputs // ROWS), -(-channels // CHANNELS))
    codes = torch.empty((*tiles, 4, 32, 4), dtype=torch.int32, device=device)
    scales = torch.empty((*tiles, 8, 8), dtype=torch.int16, device=device)
    return Bank(codes, scales, outputs, channels)


def _rows(whole: Quantised, first: int, count: int) -> Quantised:
    """Rows of an E4M3 matrix; they begin at a whole block."""
    blocks = -(-count // _BLOCK)
    return Quantised(
        whole.codes.narrow(0, first, count), whole.scale.narrow(0, first // _BLOCK, blocks)
    )
