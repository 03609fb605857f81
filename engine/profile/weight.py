"""The bytes that each phase must read, from the inventory: weights by pattern, then the cache."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from engine.geometry import Geometry
from engine.inventory.memory import INDEXED_RATIO, row_bytes, window_row_bytes
from engine.inventory.part import expected_experts
from engine.profile.span import Path
from engine.tensors import Entry, entries

# Weights of the backbone by the phase that reads them; the first pattern that matches counts.
_LAYER = r"layers\.\d+\."
TORCH: Mapping[Path, str] = {
    ("hyper",): _LAYER + r"(hc_|attn_norm|ffn_norm)",
    ("attention", "gather"): _LAYER + r"attn\.(compressor|indexer)\.",
    ("attention", "finish"): _LAYER + r"attn\.(wo_a|wo_b|attn_sink)",
    ("attention", "project"): _LAYER + r"attn\.",
    ("experts",): _LAYER + r"ffn\.",
    ("head",): r"(head\.|hc_head_|norm\.)",
}
# The triton backend's launches: each joins what does not depend on one another.
TRITON: Mapping[Path, str] = {
    ("hyper", "multiply"): _LAYER + r"hc_(attn|ffn)_fn",
    ("hyper", "finish"): _LAYER + r"(hc_|attn_norm|ffn_norm)",
    ("attention", "project"): _LAYER
    + r"attn\.(wq_a|wkv|(indexer\.)?compressor\.(wkv|wgate)|indexer\.weights_proj)\.",
    ("attention", "intake"): _LAYER + r"attn\.(q_norm|kv_norm|(indexer\.)?compressor\.ape)",
    ("attention", "heads"): _LAYER + r"attn\.(indexer\.)?compressor\.norm",
    ("attention", "queries"): _LAYER + r"attn\.(indexer\.)?wq_b",
    ("attention", "attend"): _LAYER + r"attn\.attn_sink",
    ("attention", "wo_a"): _LAYER + r"attn\.wo_a",
    ("attention", "wo_b"): _LAYER + r"attn\.wo_b",
    ("experts", "router"): _LAYER + r"ffn\.gate\.",
    ("experts", "gate_up"): _LAYER + r"ffn\.(shared_experts|experts\.\*)\.w[13]\.",
    ("experts", "down"): _LAYER + r"ffn\.(shared_experts|experts\.\*)\.w2\.",
    ("head",): r"(head\.|hc_head_|norm\.)",
}

# Where the shared expert's first product is launched, by the configuration's `shared_expert`.
_BEGUN: Mapping[str, Path] = {"router": ("experts", "router"), "stream": ("experts", "shared")}

Size = Callable[[Entry], float]


def triton(shared_expert: str) -> Mapping[Path, str]:
    """TRITON for a configuration's `shared_expert`."""
    if (begun := _BEGUN.get(shared_expert)) is None:
        return TRITON
    routed, shared = (
        _LAYER + rf"ffn\.{name}\.w[13]\." for name in (r"experts\.\*", "shared_experts")
    )
    beside = f"({TRITON[begun]}|{shared})" if begun in TRITON else shared
    return {**TRITON, ("experts", "gate_up"): routed, begun: beside}


def stored(entry: Entry) -> float:
    """Bytes of a tensor as the checkpoint stores it."""
    return entry.size_bytes


def decoded(element_bytes: int) -> Size:
    """Bytes of a tensor that was decoded to elements of one size at load."""
    return lambda entry: entry.size * (8 if entry.format == "i64" else element_bytes)


def weights(
    geometry: Geometry, patterns: Mapping[Path, str], size: Size, rows: int = 1
) -> dict[Path, float]:
    """Weight bytes of one step of `rows` tokens by phase, for the phases that read any.

    Experts count by the expected union of random choices, tables by the rows that are looked up.
    """
    experts = expected_experts(geometry, rows) / geometry.n_routed_experts
    found: dict[Path, float] = {}
    for entry in entries(geometry):
        path = next((p for p, text in patterns.items() if re.match(text, entry.name)), None)
        if path is None:
            continue
        share = experts if entry.stack else 1.0
        if entry.format == "i64":
            share = rows / geometry.vocab_size
        found[path] = found.get(path, 0.0) + size(entry) * share
    return found


def cache(geometry: Geometry, context: int, form: str) -> dict[Path, float]:
    """Bytes of cached rows that a step after `context` tokens reads, by phase of TRITON.

    Rows of one step look at nearly the same rows, so its width hardly matters.
    """
    g = geometry
    row, key = row_bytes(g, form)
    ratios = [r for r in g.layer_ratios if r]
    attended = sum(
        min(context // r, g.index_topk) if r == INDEXED_RATIO else context // r for r in ratios
    )
    near = g.num_hidden_layers * min(context, g.sliding_window) * window_row_bytes(g, form)
    keys = sum(context // r for r in ratios if r == INDEXED_RATIO)
    return {("attention", "attend"): near + attended * row, ("attention", "index"): keys * key}
