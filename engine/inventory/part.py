"""The parts of a model: which tensors belong to each, and what one decoded token reads of them.

A token reads every tensor of the backbone once, whole, but for two kinds: of the routed experts it
reads those that it is routed to, and of tables by token it reads one row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import CheckpointError
from engine.geometry import Geometry
from engine.tensors import Entry, entries

ROUTED = "routed experts"
WHOLE, CHOSEN, ROW, NONE = "whole", "chosen experts", "one row", "not read"


@dataclass(frozen=True, slots=True)
class Kind:
    """A part: tensors by pattern, how a token reads them, and the config fields that size them."""

    name: str
    group: str  # the coarser part that memory is reported by
    pattern: str  # of native names; the first kind that matches owns the tensor
    read: str
    source: str


_BLOCK = r"layers\.\d+\."
# In the order of a forward pass. The draft's own blocks come first, since they repeat the names.
KINDS = (
    Kind("draft routed experts", "draft", r"mtp\.\d+\.ffn\.experts\.", NONE,
         "n_routed_experts x 3 x hidden_size x moe_intermediate_size, MXFP4"),
    Kind("draft markov tables", "draft", r"mtp\.\d+\.markov_head\.", NONE,
         "2 x vocab_size x dspark_markov_rank, BF16"),
    Kind("draft dense", "draft", r"mtp\.", NONE,
         "a window-only block per draft stage; hidden_size x taps for main_proj"),
    Kind("embedding", "embedding", r"embed\.", ROW, "vocab_size x hidden_size, BF16"),
    Kind("hyper-connections", "hyper-connections", _BLOCK + r"hc_", WHOLE,
         "2 x (2 + hc_mult) hc_mult x hc_mult hidden_size, F32"),
    Kind("block norms", "norms", _BLOCK + r"(attn|ffn)_norm\.", WHOLE, "2 x hidden_size, BF16"),
    Kind("wq_a", "attention", _BLOCK + r"attn\.wq_a\.", WHOLE,
         "q_lora_rank x hidden_size, FP8"),
    Kind("wkv", "attention", _BLOCK + r"attn\.wkv\.", WHOLE, "head_dim x hidden_size, FP8"),
    Kind("compressor products", "compressors", _BLOCK + r"attn\.compressor\.w", WHOLE,
         "2 x head_dim x hidden_size, twice that at ratio 4, BF16"),
    Kind("compressor ape and norm", "compressors", _BLOCK + r"attn\.compressor\.", WHOLE,
         "compress_ratios x head_dim, F32; head_dim, BF16"),
    Kind("wq_b", "attention", _BLOCK + r"attn\.wq_b\.", WHOLE,
         "num_attention_heads head_dim x q_lora_rank, FP8"),
    Kind("indexer wq_b", "indexers", _BLOCK + r"attn\.indexer\.wq_b\.", WHOLE,
         "index_n_heads index_head_dim x q_lora_rank, FP8"),
    Kind("indexer weights_proj", "indexers", _BLOCK + r"attn\.indexer\.weights_proj\.", WHOLE,
         "index_n_heads x hidden_size, BF16"),
    Kind("indexer compressor", "indexers", _BLOCK + r"attn\.indexer\.compressor\.", WHOLE,
         "4 x index_head_dim x hidden_size, BF16; ape F32"),
    Kind("wo_a", "attention", _BLOCK + r"attn\.wo_a\.", WHOLE,
         "o_groups o_lora_rank x heads head_dim / o_groups, FP8"),
    Kind("wo_b", "attention", _BLOCK + r"attn\.wo_b\.", WHOLE,
         "hidden_size x o_groups o_lora_rank, FP8"),
    Kind("attention norms and sinks", "attention", _BLOCK + r"attn\.", WHOLE,
         "q_lora_rank + head_dim, BF16; num_attention_heads, F32"),
    Kind("token tables", "router", _BLOCK + r"ffn\.gate\.tid2eid", ROW,
         "vocab_size x num_experts_per_tok, I64, num_hash_layers"),
    Kind("router", "router", _BLOCK + r"ffn\.gate\.", WHOLE,
         "n_routed_experts x hidden_size, BF16; bias F32"),
    Kind("shared expert", "shared experts", _BLOCK + r"ffn\.shared_experts\.", WHOLE,
         "3 x hidden_size x moe_intermediate_size, FP8"),
    Kind(ROUTED, "routed experts", _BLOCK + r"ffn\.experts\.", CHOSEN,
         "3 x hidden_size x moe_intermediate_size, MXFP4, n_routed_experts"),
    Kind("head connection and norm", "norms", r"(hc_head_|norm\.)", WHOLE,
         "hc_mult x hc_mult hidden_size, F32; hidden_size, BF16"),
    Kind("head", "head", r"head\.", WHOLE, "vocab_size x hidden_size, BF16"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Part:
    """Sums over the tensors of one kind; scales count as tensors, as they do on disk."""

    kind: Kind
    tensors: int
    stored_bytes: int
    read_bytes: int  # by one decoded token


def kind_of(name: str) -> Kind:
    """The kind that owns a tensor; CheckpointError for a name no kind knows."""
    found = next((kind for kind in KINDS if re.match(kind.pattern, name)), None)
    if found is None:
        raise CheckpointError(f"The tensor {name} belongs to no part of the model.")
    return found


def parts(geometry: Geometry) -> tuple[Part, ...]:
    """Every part that the geometry has tensors of, in the order of `KINDS`."""
    owned: dict[str, list[Entry]] = {kind.name: [] for kind in KINDS}
    for entry in entries(geometry):
        owned[kind_of(entry.name).name].append(entry)
    return tuple(
        Part(
            kind=kind,
            tensors=sum(len(entry.native) * (1 + entry.scaled) for entry in owned[kind.name]),
            stored_bytes=sum(entry.size_bytes for entry in owned[kind.name]),
            read_bytes=sum(_read(entry, kind, geometry) for entry in owned[kind.name]),
        )
        for kind in KINDS
        if owned[kind.name]
    )


def _read(entry: Entry, kind: Kind, geometry: Geometry) -> int:
    if kind.read == NONE:
        return 0
    if kind.read == ROW:
        return entry.size_bytes // geometry.vocab_size
    if kind.read == CHOSEN:
        return entry.size_bytes // geometry.n_routed_experts * geometry.num_experts_per_tok
    return entry.size_bytes


def read_bytes(found: Sequence[Part], geometry: Geometry, rows: int = 1) -> float:
    """Bytes of one step of `rows` tokens; its experts are the expected union of random choices."""
    one = sum(part.read_bytes for part in found)
    routed = sum(part.read_bytes for part in found if part.kind.name == ROUTED)
    by_row = sum(part.read_bytes for part in found if part.kind.read == ROW)
    each = routed / geometry.num_experts_per_tok
    return one - routed + each * expected_experts(geometry, rows) + by_row * (rows - 1)


def expected_experts(geometry: Geometry, rows: int) -> float:
    """Different experts of a layer that `rows` tokens visit if each chooses at random."""
    every, chosen = geometry.n_routed_experts, geometry.num_experts_per_tok
    return every * (1.0 - (1.0 - chosen / every) ** rows)


def expert_bytes(geometry: Geometry) -> int:
    """One routed expert of one layer."""
    one = [e for e in entries(geometry) if re.match(r"layers\.0\.ffn\.experts\.", e.name)]
    return sum(entry.size_bytes for entry in one) // geometry.n_routed_experts


def draft_bytes(found: Sequence[Part], geometry: Geometry) -> dict[str, float]:
    """Bytes that one draft reads at most: its block visits the expected union of experts.

    The head is the target's; the Markov product is read once for every drafted token.
    """
    stored = {part.kind.name: part.stored_bytes for part in found}
    block = geometry.dspark_block_size
    share = expected_experts(geometry, block) / geometry.n_routed_experts
    return {
        "dense": stored["draft dense"],
        "routed experts": stored["draft routed experts"] * share,
        "head": stored["head"],
        "markov": stored["draft markov tables"] / 2 * block,
    }
