"""Every tensor of a checkpoint: native name, shape, and how it lies on disk."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from engine.formats import FP4_GROUP, FP8_BLOCK
from engine.geometry import Geometry

Format = Literal["fp4", "fp8", "bf16", "f32", "i64"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor, or the same tensor of all `stack` experts (name with `*` for the expert)."""

    name: str
    shape: tuple[int, ...]  # of one native tensor
    format: Format
    stack: int = 0

    @property
    def full_shape(self) -> tuple[int, ...]:
        """Shape with the experts stacked in front."""
        return (self.stack, *self.shape) if self.stack else self.shape

    @property
    def size(self) -> int:
        """Elements, all experts counted."""
        total = max(self.stack, 1)
        for extent in self.shape:
            total *= extent
        return total

    @property
    def native(self) -> tuple[str, ...]:
        """The native names it covers."""
        if not self.stack:
            return (self.name,)
        return tuple(self.name.replace("*", str(e)) for e in range(self.stack))

    @property
    def scaled(self) -> bool:
        """Whether each native tensor has a tensor of scales beside it."""
        return self.format in ("fp4", "fp8")

    @property
    def size_bytes(self) -> int:
        """Bytes on disk, scales included."""
        if self.format == "fp4":
            return self.size // 2 + self.size // FP4_GROUP
        if self.format == "fp8":
            rows, columns = self.shape
            return self.size + -(-rows // FP8_BLOCK) * -(-columns // FP8_BLOCK)
        return self.size * {"bf16": 2, "f32": 4, "i64": 8}[self.format]


def entries(g: Geometry) -> list[Entry]:
    """All tensors of geometry `g`, in checkpoint order."""
    d = g.hidden_size
    found = [
        Entry("embed.weight", (g.vocab_size, d), "bf16"),
        Entry("head.weight", (g.vocab_size, d), "bf16"),
        Entry("norm.weight", (d,), "bf16"),
        *_hyper(g, "hc_head_", g.hc_mult, 1),
    ]
    for i, ratio in enumerate(g.layer_ratios):
        found += _block(g, f"layers.{i}.", ratio, hashed=i < g.num_hash_layers)
    for s in range(g.draft_stages):
        found += _block(g, f"mtp.{s}.", 0, hashed=False)
    last, rank = f"mtp.{g.draft_stages - 1}.", g.dspark_markov_rank
    taps = len(g.dspark_target_layer_ids) * d
    return [
        *found,
        Entry("mtp.0.main_proj.weight", (d, taps), "fp8"),
        Entry("mtp.0.main_norm.weight", (d,), "bf16"),
        Entry(last + "norm.weight", (d,), "bf16"),
        *_hyper(g, last + "hc_head_", g.hc_mult, 1),
        Entry(last + "markov_head.markov_w1.weight", (g.vocab_size, rank), "bf16"),
        Entry(last + "markov_head.markov_w2.weight", (g.vocab_size, rank), "bf16"),
        Entry(last + "confidence_head.proj.weight", (1, d + rank), "bf16"),
    ]


def layer_of(name: str) -> int | None:
    """Backbone layer of a tensor name, None outside the backbone's layers."""
    match = re.match(r"layers\.(\d+)\.", name)
    return int(match[1]) if match else None


def _hyper(g: Geometry, prefix: str, mixes: int, scales: int) -> Iterator[Entry]:
    yield Entry(prefix + "fn", (mixes, g.hc_mult * g.hidden_size), "f32")
    yield Entry(prefix + "base", (mixes,), "f32")
    yield Entry(prefix + "scale", (scales,), "f32")


def _block(g: Geometry, prefix: str, ratio: int, *, hashed: bool) -> Iterator[Entry]:
    d, mixes = g.hidden_size, (2 + g.hc_mult) * g.hc_mult
    yield from _attention(g, prefix + "attn.", ratio)
    yield Entry(prefix + "attn_norm.weight", (d,), "bf16")
    yield Entry(prefix + "ffn_norm.weight", (d,), "bf16")
    yield from _hyper(g, prefix + "hc_attn_", mixes, 3)
    yield from _hyper(g, prefix + "hc_ffn_", mixes, 3)
    inner, experts, ffn = g.moe_intermediate_size, g.n_routed_experts, prefix + "ffn."
    yield Entry(ffn + "gate.weight", (experts, d), "bf16")
    if hashed:
        yield Entry(ffn + "gate.tid2eid", (g.vocab_size, g.num_experts_per_tok), "i64")
    else:
        yield Entry(ffn + "gate.bias", (experts,), "f32")
    for name, shape in (("w1", (inner, d)), ("w3", (inner, d)), ("w2", (d, inner))):
        yield Entry(f"{ffn}experts.*.{name}.weight", shape, "fp4", stack=experts)
        yield Entry(f"{ffn}shared_experts.{name}.weight", shape, "fp8")


def _attention(g: Geometry, prefix: str, ratio: int) -> Iterator[Entry]:
    heads, latent = g.num_attention_heads * g.head_dim, g.o_groups * g.o_lora_rank
    yield Entry(prefix + "wq_a.weight", (g.q_lora_rank, g.hidden_size), "fp8")
    yield Entry(prefix + "q_norm.weight", (g.q_lora_rank,), "bf16")
    yield Entry(prefix + "wq_b.weight", (heads, g.q_lora_rank), "fp8")
    yield Entry(prefix + "wkv.weight", (g.head_dim, g.hidden_size), "fp8")
    yield Entry(prefix + "kv_norm.weight", (g.head_dim,), "bf16")
    yield Entry(prefix + "wo_a.weight", (latent, heads // g.o_groups), "fp8")
    yield Entry(prefix + "wo_b.weight", (g.hidden_size, latent), "fp8")
    yield Entry(prefix + "attn_sink", (g.num_attention_heads,), "f32")
    if ratio:
        width = (2 if ratio == 4 else 1) * g.head_dim
        yield from _compressor(g, prefix + "compressor.", ratio, width, g.head_dim)
    if ratio == 4:
        dim, indexer = g.index_head_dim, prefix + "indexer."
        yield Entry(indexer + "wq_b.weight", (g.index_n_heads * dim, g.q_lora_rank), "fp8")
        yield Entry(indexer + "weights_proj.weight", (g.index_n_heads, g.hidden_size), "bf16")
        yield from _compressor(g, indexer + "compressor.", 4, 2 * dim, dim)


def _compressor(g: Geometry, prefix: str, ratio: int, width: int, row: int) -> Iterator[Entry]:
    yield Entry(prefix + "wkv.weight", (width, g.hidden_size), "bf16")
    yield Entry(prefix + "wgate.weight", (width, g.hidden_size), "bf16")
    yield Entry(prefix + "ape", (ratio, width), "f32")
    yield Entry(prefix + "norm.weight", (row,), "bf16")
